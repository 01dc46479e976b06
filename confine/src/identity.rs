//! Change of a process of root to another user, with another root directory.
//!
//! Firecracker's jailer and QEMU's `-run-with` have the same order: root directory, groups, group, user. Each step needs rights that the
//! next step gives up. The kernel keeps all the rights for each thread, so the process must have a single thread, from which later threads
//! inherit the rights.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{chdir, chroot, fchdir};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::begin::has_one_thread;
use crate::inherited::Inherited;

/// The new root directory of all paths.
#[derive(Debug)]
pub struct Root {
    /// The directory's name, for messages.
    pub path: PathBuf,
    /// The directory.
    pub directory: OwnedFd,
}

/// The new user and root directory of a process of root.
#[derive(Debug)]
pub struct Identity {
    /// The number of the user.
    pub uid: u32,
    /// The number of the only group.
    pub gid: u32,
    /// The new root directory, if any.
    pub root: Option<Root>,
    /// The descriptors to close.
    pub inherited: Inherited,
}

/// The process cannot become another user.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The process has several threads, or `/proc` cannot be read.
    #[error(
        "cannot change the user: hyprobe has another thread, which would keep the rights of root; this is a bug of hyprobe"
    )]
    Threads,
    /// The root directory.
    #[error("cannot make {root} the root directory")]
    Root {
        /// The directory.
        root: PathBuf,
        /// The system's answer.
        source: Errno,
    },
    /// The user or the groups.
    #[error(
        "cannot become the user {uid} of the group {gid}: is hyprobe in a user namespace without them?"
    )]
    Ids {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// The system's answer.
        source: Errno,
    },
    /// Capabilities.
    #[error("cannot give up the capabilities of root")]
    Capabilities(#[source] Errno),
    /// The process could become root again.
    #[error(
        "the user {uid} can still become root: the host's settings (securebits) keep the rights of root"
    )]
    StillRoot {
        /// The user.
        uid: u32,
    },
}

impl Identity {
    /// Becomes the user. Afterwards the process has no capability and no supplementary group, and of the parent's descriptors only standard
    /// input, output and error. Files opened by the process stay open.
    ///
    /// # Errors
    ///
    /// If the system refuses a step. The process must end then: some steps may be done.
    pub fn assume(&self) -> Result<(), IdentityError> {
        let Self { uid, gid, .. } = *self;
        self.inherited.close();
        if !has_one_thread() {
            return Err(IdentityError::Threads);
        }
        if let Some(root) = &self.root {
            fchdir(&root.directory)
                .and_then(|()| chroot("."))
                .and_then(|()| chdir("/"))
                .map_err(|source| IdentityError::Root {
                    root: root.path.clone(),
                    source,
                })?;
        }
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[])
            .and_then(|()| set_thread_res_gid(group, group, group))
            .and_then(|()| set_thread_res_uid(user, user, user))
            .map_err(|source| IdentityError::Ids { uid, gid, source })?;
        // The change of the user clears the effective and permitted capabilities, unless securebits keep them.
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none).map_err(IdentityError::Capabilities)?;
        match set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT) {
            Ok(()) => Err(IdentityError::StillRoot { uid }),
            Err(_) => Ok(()),
        }
    }
}
