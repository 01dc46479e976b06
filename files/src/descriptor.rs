//! Inherited descriptors, under their names in `/dev` and `/proc`.
//!
//! An open of the name would open the file of the descriptor again: at the start of the file, with the process's present rights, and never
//! a socket. Outputs go to a duplicate of the descriptor instead, as standard output does.

#![expect(
    unsafe_code,
    reason = "a descriptor that is a number from the command line has no owner"
)]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use crate::error::CreateError;

/// Duplicates start behind standard error.
const FIRST_DUPLICATE: c_int = 3;

/// The number of the descriptor named by `path`; `None` for other paths. The descriptor may be closed.
pub(crate) fn named_by(path: &Path) -> Option<RawFd> {
    let folder = path.parent().and_then(Path::to_str);
    let name = path.file_name().and_then(|name| name.to_str())?;
    match (folder, name) {
        (Some("/dev"), "stdout") => Some(1),
        (Some("/dev"), "stderr") => Some(2),
        (Some("/dev/fd" | "/proc/self/fd"), number)
            if number.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            number.parse().ok()
        }
        _ => None,
    }
}

/// A duplicate of the descriptor `number`, if the parent process has opened the descriptor for writing.
pub(crate) fn duplicate(number: RawFd) -> Result<File, CreateError> {
    // hyprobe's own descriptors have FD_CLOEXEC. A descriptor passed through `execve` has no FD_CLOEXEC.
    let is_inherited =
        fcntl(number, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
    let is_writable = fcntl(number, libc::F_GETFL, 0)
        .is_ok_and(|flags| flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY);
    if !is_inherited || !is_writable {
        return Err(CreateError::Descriptor { number });
    }
    let duplicate = fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST_DUPLICATE)?;
    // SAFETY: the kernel has just made the descriptor, and nothing else knows its number.
    let duplicate = unsafe { OwnedFd::from_raw_fd(duplicate) };
    Ok(duplicate.into())
}

/// A command of `fcntl` from the list above. No command takes an address, changes `number` or closes `number`.
fn fcntl(number: RawFd, command: c_int, argument: c_int) -> io::Result<c_int> {
    // SAFETY: `fcntl` gets numbers only, so it accesses no memory of this process. If `number` is not open, the answer is an error.
    match unsafe { libc::fcntl(number, command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::fd::{AsFd, AsRawFd as _};
    use std::os::unix::net::UnixStream;

    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    use super::*;
    use crate::create;

    /// Passes `file` as a shell passes a descriptor, and returns its name.
    fn inherited(file: impl AsFd) -> String {
        let file = file.as_fd();
        fcntl_setfd(file, FdFlags::empty()).expect("set");
        format!("/dev/fd/{}", file.as_raw_fd())
    }

    fn is_refused(path: &str) -> bool {
        let error = create(Path::new(path)).expect_err("no output");
        matches!(error, CreateError::Descriptor { .. })
    }

    #[test]
    fn names_of_descriptors_are_their_numbers() {
        for (path, expected) in [
            ("/dev/stdout", Some(1)),
            ("/dev/stderr", Some(2)),
            ("/dev/stdin", None),
            ("/dev/fd/17", Some(17)),
            ("/proc/self/fd/3", Some(3)),
            ("/dev/fd/x", None),
            ("/dev/fd/-1", None),
            ("/dev/fd/99999999999", None),
            ("/tmp/fd/1", None),
        ] {
            assert_eq!(named_by(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn file_behind_a_descriptor_keeps_its_contents_and_is_appended_to() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("log");
        fs::write(&path, "earlier, ").expect("written");
        let log = File::options().append(true).open(&path).expect("open");
        let mut output = create(Path::new(&inherited(&log))).expect("duplicated");
        output.write_all(b"now").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "earlier, now");
        let flags = fcntl_getfd(&output).expect("open");
        assert!(flags.contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn pipes_sockets_and_files_without_a_name_are_written_to() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let path = inherited(&writer).replace("/dev", "/proc/self");
        let mut output = create(Path::new(&path)).expect("duplicated");
        output.write_all(b"x").expect("written");
        let mut byte = [0];
        reader.read_exact(&mut byte).expect("read");
        assert_eq!(&byte, b"x");

        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let mut output = create(Path::new(&inherited(&theirs))).expect("duplicated");
        output.write_all(b"y").expect("written");
        ours.read_exact(&mut byte).expect("read");
        assert_eq!(&byte, b"y");
    }

    #[test]
    fn descriptors_that_are_closed_read_only_or_hyprobes_own_are_refused() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("file");
        let own = File::create(&path).expect("made");
        assert!(is_refused(&format!("/dev/fd/{}", own.as_raw_fd())));
        let read_only = File::open(&path).expect("open");
        assert!(is_refused(&inherited(&read_only)));
        assert!(is_refused("/dev/fd/1000000"));
    }
}
