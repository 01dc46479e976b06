//! The last step of each path: a name in an open directory.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};

/// Mode of files made by hyprobe: console and registers may hold secrets of the guest.
pub(crate) const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Mode of directories made by hyprobe.
pub(crate) const PRIVATE_FOLDER: Mode = Mode::RWXU;

/// Opens `name` in `directory`. A symbolic link is an error, unless `flags` have `PATH`: then the call opens the link itself.
pub(crate) fn open(
    directory: impl AsFd,
    name: &OsStr,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match openat2(&directory, name, flags, mode, resolve) {
        // Linux before 5.6, or a container's filter without the call. `name` has one component, so `NOFOLLOW` is as
        // strict.
        Err(Errno::NOSYS | Errno::PERM) => openat(directory, name, flags, mode),
        opened => opened,
    }
}
