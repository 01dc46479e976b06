//! Landlock rules: the files that the process may still open.

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
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, retry_on_intr};

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
        source: Errno,
    },
}

/// Enforcement by Landlock on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// All rules.
    Full,
    /// The rules of an older version: the kernel knows fewer rights.
    Partial,
    /// Nothing: the kernel has no Landlock, or Landlock is switched off.
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

/// The enforcement that the host's Landlock offers.
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

/// Access rights to files. The process cannot open unlisted files; open files stay usable. A path that cannot be opened gives no right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRights {
    /// Readable files, and directories with all files below.
    pub read: Vec<PathBuf>,
    /// Readable and executable files and directories.
    pub execute: Vec<PathBuf>,
    /// Writable files, and directories in which the process may make, write and remove files and directories.
    pub change: Vec<PathBuf>,
    /// Directories in which the process may remove files.
    pub remove: Vec<PathBuf>,
    /// Directories in which the process may remove empty directories.
    pub prune: Vec<PathBuf>,
    /// Devices.
    pub devices: Vec<PathBuf>,
}

impl FileRights {
    /// The rules of the rights. The call opens the files, as the present user and below the present root directory.
    ///
    /// # Errors
    ///
    /// If the kernel has Landlock and refuses the rules.
    pub fn rules(&self) -> Result<Rules, FileError> {
        Ok(Rules(self.ruleset()?))
    }

    /// The same rules for a child process. The child itself puts the rules in force.
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
    let failed = |source| FileError::Open {
        path: path.to_owned(),
        source,
    };
    // The type is that of the open file: another process may replace the file at the path.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = match retry_on_intr(|| open(path, flags, Mode::empty())) {
        Ok(file) => file,
        // This process or host lacks something; another call may succeed.
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(failed(error)),
        Err(_) => return Ok(ruleset),
    };
    let mode = fstat(&file).map_err(failed)?.st_mode;
    // Rights to a directory's entries mean nothing for a file.
    let access = match FileType::from_raw_mode(mode) {
        FileType::Directory => access,
        _ => access & AccessFs::from_file(NEWEST),
    };
    Ok(ruleset.add_rule(PathBeneath::new(file, access))?)
}

/// Rules, not in force yet.
#[derive(Debug)]
pub struct Rules(RulesetCreated);

impl Rules {
    /// Confines the calling thread, and later threads and processes of the thread. The process must have only one thread.
    ///
    /// TCP connections are out of reach, too, and so are abstract sockets and processes outside of the process and its children.
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
