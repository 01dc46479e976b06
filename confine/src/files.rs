//! The files that the process may still open: Landlock rules.

#![expect(
    unsafe_code,
    reason = "no library has the two system calls alone: the version of Landlock, and rules for a child between fork and exec"
)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    PathFd, PathFdError, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope,
};

/// The version of Landlock in Linux 6.12: the process gives up all rights of this version. An older kernel knows fewer rights.
const NEWEST: ABI = ABI::V6;

/// The rules cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Landlock itself.
    #[error("cannot confine the process to its files (Landlock)")]
    Ruleset(#[from] RulesetError),
    /// A file of a rule.
    #[error("cannot open {path} to allow access to it (Landlock)")]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: PathFdError,
    },
}

/// What Landlock enforces on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// All rules.
    Full,
    /// The rules of an older version: the kernel knows fewer rights.
    Partial,
    /// Nothing: the kernel has no Landlock, or it is switched off.
    Missing,
}

impl fmt::Display for Landlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "in force",
            Self::Partial => "in force as far as this kernel knows it",
            Self::Missing => "missing",
        })
    }
}

/// What Landlock would enforce here.
#[must_use]
pub fn landlock() -> Landlock {
    // The flag asks for the version; the call then takes no rules.
    const VERSION: libc::c_long = 1;
    // SAFETY: with a null pointer and the size 0 the kernel reads no memory of this process.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) };
    match version {
        ..=0 => Landlock::Missing,
        version if version < NEWEST as libc::c_long => Landlock::Partial,
        _ => Landlock::Full,
    }
}

/// The access rights to files. Whatever is not listed cannot be opened; open files stay usable. A path that does not exist gives no
/// right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRights {
    /// Files, and directories with all below, that may be read.
    pub read: Vec<PathBuf>,
    /// Files and directories that may be read and executed.
    pub execute: Vec<PathBuf>,
    /// Files that may be written, and directories in which files and directories may be made, written and removed.
    pub change: Vec<PathBuf>,
    /// Directories in which files may be removed.
    pub remove: Vec<PathBuf>,
    /// Directories in which empty directories may be removed.
    pub prune: Vec<PathBuf>,
    /// Devices.
    pub devices: Vec<PathBuf>,
}

impl FileRights {
    /// The rules of these rights. The files are opened here, as the user and below the root directory of this moment.
    ///
    /// # Errors
    ///
    /// If the kernel has Landlock and refuses the rules.
    pub fn rules(&self) -> Result<Rules, FileError> {
        Ok(Rules(self.ruleset()?))
    }

    /// The same rules for a child process, which puts them in force itself.
    ///
    /// # Errors
    ///
    /// If the kernel has Landlock and refuses the rules.
    pub fn layer(&self) -> Result<Layer, FileError> {
        Ok(Layer(self.ruleset()?.into()))
    }

    fn ruleset(&self) -> Result<RulesetCreated, FileError> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let execute = read | AccessFs::Execute;
        let change = read | AccessFs::from_write(NEWEST);
        let remove: BitFlags<AccessFs> = AccessFs::RemoveFile.into();
        let prune: BitFlags<AccessFs> = AccessFs::RemoveDir.into();
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        let lists = [
            (&self.read, read),
            (&self.execute, execute),
            (&self.change, change),
            (&self.remove, remove),
            (&self.prune, prune),
            (&self.devices, device),
        ];
        for (path, access) in lists
            .into_iter()
            .flat_map(|(paths, access)| paths.iter().map(move |path| (path, access)))
        {
            ruleset = allowing(ruleset, path, access)?;
        }
        Ok(ruleset)
    }
}

fn allowing(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, FileError> {
    let Ok(found) = std::fs::metadata(path) else {
        return Ok(ruleset);
    };
    let file = PathFd::new(path).map_err(|source| FileError::Open {
        path: path.to_owned(),
        source,
    })?;
    // Rights to a directory's entries mean nothing for a file.
    let access = match found.is_dir() {
        true => access,
        false => access & AccessFs::from_file(NEWEST),
    };
    Ok(ruleset.add_rule(PathBeneath::new(file, access))?)
}

/// Rules that are not in force yet.
#[derive(Debug)]
pub struct Rules(RulesetCreated);

impl Rules {
    /// Confines the calling thread, and the threads and processes that the thread starts later. The process must have one thread.
    ///
    /// TCP connections, and abstract sockets and processes outside of this process and its children are out of reach, too.
    ///
    /// # Errors
    ///
    /// If the kernel has Landlock and refuses the rules.
    pub fn restrict(self) -> Result<Landlock, FileError> {
        let status = self.0.restrict_self()?;
        Ok(match status.ruleset {
            RulesetStatus::FullyEnforced => Landlock::Full,
            RulesetStatus::PartiallyEnforced => Landlock::Partial,
            RulesetStatus::NotEnforced => Landlock::Missing,
        })
    }
}

/// Rules for a child process.
#[derive(Debug)]
pub struct Layer(Option<OwnedFd>);

impl Layer {
    /// The descriptor of the rules, if the kernel has Landlock.
    #[must_use]
    pub fn fd(&self) -> Option<RawFd> {
        self.0.as_ref().map(OwnedFd::as_raw_fd)
    }
}

/// Puts the rules of a [`Layer`] in force for the calling thread: one system call, for a child between fork and exec. The child
/// cannot gain privileges any more ([`crate::begin()`]).
///
/// # Errors
///
/// The kernel's answer.
pub fn enter_layer(layer: RawFd) -> io::Result<()> {
    // SAFETY: the call has two integers as arguments and touches no memory of this process.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, layer, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
