//! The sandbox of a run: the files, the calls and the hosts that this process still reaches while guests run.
//!
//! A guest that takes hyprobe over has the rights of this process. The process therefore gives up the rights that the rest of the run
//! does not need: after the reading of the user's files and the opening of the outputs, before the first thread starts. `SECURITY.md`
//! lists the remaining rights.

use std::path::PathBuf;

use confine::{FileError, FileRights, FilterError, Identity, IdentityError, Landlock};
use guest_images::Store;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::exit::{Exit, Failure};

/// Whether a run has a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// Every part that this host's kernel offers.
    #[default]
    On,
    /// `--no-sandbox`.
    Off,
}

/// The sandbox cannot be put in force.
#[derive(Debug, Error)]
pub(crate) enum SandboxError {
    /// Files.
    #[error(transparent)]
    Files(#[from] FileError),
    /// System calls.
    #[error(transparent)]
    Calls(#[from] FilterError),
    /// The user.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The process has several threads, or `/proc` cannot be read.
    #[error(
        "cannot confine the process to its files (Landlock): hyprobe has another thread, which would keep its rights"
    )]
    Threads,
}

impl Failure for SandboxError {
    fn exit(&self) -> Exit {
        Exit::HostCannot
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Files(_) | Self::Calls(_) => Some(SANDBOX_HELP.to_owned()),
            Self::Identity(_) | Self::Threads => None,
        }
    }
}

/// What to do if the sandbox cannot be put in force.
const SANDBOX_HELP: &str = "`--no-sandbox` runs without it: a guest that takes hyprobe over then has all rights of its user";

/// The consequence of `--no-sandbox`.
const OFF: &str = "no sandbox: a guest that takes hyprobe over has all rights of its user";
/// The consequence of a kernel without Landlock.
const NO_LANDLOCK: &str = "this host's kernel has no Landlock: a guest that takes hyprobe over can read and write the files of \
                           its user";

impl Sandbox {
    /// Gives up rights, and becomes `identity`. The rights of all runs and the rights added by `add` remain. `print_note` gets a sentence for
    /// each missing part. The process must have one thread.
    ///
    /// # Errors
    ///
    /// See [`SandboxError`].
    pub(crate) fn put_in_force(
        self,
        identity: Option<&Identity>,
        add: impl FnOnce(&mut FileRights),
        print_note: &dyn Fn(String),
    ) -> Result<(), SandboxError> {
        let rules = match self {
            Self::Off => None,
            Self::On => {
                // The new root directory may have no `/proc`.
                if !confine::has_one_thread() {
                    return Err(SandboxError::Threads);
                }
                let mut rights = common_rights();
                add(&mut rights);
                // The files of the rules may lie outside of the new root directory.
                Some(rights.rules()?)
            }
        };
        if let Some(identity) = identity {
            identity.assume()?;
        }
        let Some(rules) = rules else {
            print_note(OFF.to_owned());
            return Ok(());
        };
        match rules.restrict()? {
            Landlock::Full => (),
            Landlock::Partial => {
                tracing::info!("this host's kernel confines files in part")
            }
            Landlock::Missing => print_note(NO_LANDLOCK.to_owned()),
        }
        confine::load_filters()?;
        Ok(confine::filter_process()?)
    }
}

/// The rights to files that every run needs: devices, the image cache, and the system's files about processors, memory and
/// processes.
fn common_rights() -> FileRights {
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
    let mut rights = FileRights {
        // Nested runs boot this executable.
        read: paths(&[
            "/proc",
            "/proc/self/exe",
            "/sys/devices/system",
            "/sys/fs/cgroup",
        ]),
        devices: paths(&["/dev/kvm", "/dev/null", "/dev/urandom"]),
        ..FileRights::default()
    };
    // A run that needs the cache has opened it before, and would have failed.
    let cache = Store::open().ok();
    rights
        .read
        .extend(cache.map(|cache| cache.root().to_owned()));
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_is_refused_beside_another_thread() {
        // The test runner's first thread waits for the test's thread.
        let refused = Sandbox::On.put_in_force(None, |_| (), &|_| ());
        assert!(matches!(refused, Err(SandboxError::Threads)), "{refused:?}");
    }
}
