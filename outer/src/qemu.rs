//! The search for a suitable QEMU, and the rights that QEMU needs.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use confine::{FileError, FileRights, Layer};
use thiserror::Error;

/// Names the QEMU to use; beats the search in `PATH`.
const VARIABLE: &str = "HYPROBE_QEMU";
const PROGRAM: &str = "qemu-system-x86_64";

/// The TCG of QEMU 7.2 has no breakpoints for a nested guest, and breaks the guest's kernels: Linux 6.12 dies in cmpxchg16b, and Linux 7.2
/// in the xstate set-up. The first QEMU release seen to boot both kernels is 10.0.
const OLDEST: Version = Version {
    major: 10,
    minor: 0,
};

/// The directories of a system's programs, libraries and settings.
const SYSTEM: [&str; 7] = [
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/etc",
    "/nix/store",
    "/gnu/store",
];
/// The directories of a QEMU's own libraries, helpers and firmware.
const BESIDE: [&str; 6] = ["lib", "lib64", "libexec", "share", "pc-bios", "qemu-bundle"];

/// QEMU's filter of system calls: old calls, other identities, new processes and changed limits kill QEMU.
const SANDBOX: [&str; 2] = [
    "-sandbox",
    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
];

/// The advice for a missing or old QEMU, for a newcomer.
const INSTALL: &str = "on Debian 13 and Ubuntu 25.04 or later `apt install qemu-system-x86`; on Debian 12 enable \
                       bookworm-backports and `apt install -t bookworm-backports qemu-system-x86`; or name one in \
                       HYPROBE_QEMU";

/// A release of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    /// Reads the first line of `qemu-system-x86_64 --version`.
    fn parse(output: &str) -> Option<Self> {
        let numbers = output.split_once("emulator version ")?.1;
        let mut numbers = numbers.split(|character: char| !character.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why no nested run is possible here. Each is a sentence for the user.
#[derive(Debug, Error)]
pub enum QemuError {
    /// No QEMU was found.
    #[error("there is no {PROGRAM}, which nested runs need: {INSTALL}")]
    Missing,
    /// The QEMU cannot be started.
    #[error("cannot start {}", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The program does not print a QEMU version.
    #[error("{} is no QEMU: `--version` says {said:?}", path.display())]
    NotQemu {
        /// The program.
        path: PathBuf,
        /// The beginning of the output.
        said: String,
    },
    /// The QEMU is too old.
    #[error(
        "{} is version {found}, nested runs need {OLDEST} or later (guests crash under the TCG of older ones): {INSTALL}",
        path.display()
    )]
    TooOld {
        /// The program.
        path: PathBuf,
        /// The version of the program.
        found: Version,
    },
}

/// A QEMU suitable for nested runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    path: PathBuf,
    version: Version,
    has_sandbox: bool,
}

impl Qemu {
    /// Finds the QEMU named by `HYPROBE_QEMU`, or else the QEMU in `PATH`, and asks for the version.
    ///
    /// # Errors
    ///
    /// No QEMU was found, or the QEMU is not suitable.
    pub fn find() -> Result<Self, QemuError> {
        Self::at(search(|name| std::env::var_os(name)).ok_or(QemuError::Missing)?)
    }

    /// Asks the QEMU at `path` for the version.
    ///
    /// # Errors
    ///
    /// The QEMU is not suitable.
    pub fn at(path: PathBuf) -> Result<Self, QemuError> {
        let ask = |options: &[&str]| {
            Command::new(&path)
                .args(options)
                .stdin(Stdio::null())
                .output()
                .map_err(|source| QemuError::Start {
                    path: path.clone(),
                    source,
                })
        };
        let output = ask(&["--version"])?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        match Version::parse(&output) {
            None => Err(QemuError::NotQemu {
                path,
                said: output.chars().take(80).collect(),
            }),
            Some(found) if found < OLDEST => Err(QemuError::TooOld { path, found }),
            Some(version) => {
                // QEMU answers the second query behind its own system-call filter. Without seccomp in QEMU or on this host, QEMU refuses
                // the option.
                let behind = ask(&[&SANDBOX[..], &["-machine", "none", "-cpu", "help"]].concat())?;
                let has_sandbox = behind.status.success();
                Ok(Self {
                    path,
                    version,
                    has_sandbox,
                })
            }
        }
    }

    /// The option for names of QEMU's threads. Later versions name their threads always, and are to lose the option.
    #[must_use]
    pub const fn thread_names(&self) -> &'static [&'static str] {
        match self.version.major {
            ..11 => &["-name", "debug-threads=on"],
            _ => &[],
        }
    }

    /// The program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether QEMU can filter its own system calls.
    pub fn has_sandbox(&self) -> bool {
        self.has_sandbox
    }

    /// Adds the file rights that QEMU needs: the program, the libraries and the firmware.
    pub fn add_rights(&self, rights: &mut FileRights) {
        rights.execute.extend(SYSTEM.iter().map(PathBuf::from));
        // A QEMU that is not the system's has libraries and firmware beside the program, or beside `bin`.
        let program = self.path.canonicalize();
        let program = program.as_deref().unwrap_or(&self.path);
        rights.execute.push(program.to_owned());
        let directory = program.parent().filter(|it| !it.as_os_str().is_empty());
        let beside = directory.and_then(|directory| match directory.ends_with("bin") {
            true => directory.parent(),
            false => Some(directory),
        });
        let beside = beside
            .into_iter()
            .flat_map(|it| BESIDE.map(|name| it.join(name)));
        rights.execute.extend(beside);
    }

    /// The rules for QEMU's own process: the files needed for the start, and no file of the user.
    ///
    /// # Errors
    ///
    /// Landlock refuses a rule.
    pub fn layer(&self) -> Result<Layer, FileError> {
        let mut rights = FileRights {
            read: ["/proc", "/sys/devices/system"].map(PathBuf::from).to_vec(),
            devices: ["/dev/null", "/dev/urandom"].map(PathBuf::from).to_vec(),
            ..FileRights::default()
        };
        self.add_rights(&mut rights);
        rights.layer()
    }

    /// The options that confine QEMU.
    pub fn sandbox(&self) -> &'static [&'static str] {
        match self.has_sandbox {
            true => &SANDBOX,
            false => &[],
        }
    }
}

impl fmt::Display for Qemu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QEMU {} ({})", self.version, self.path.display())?;
        match self.has_sandbox {
            true => Ok(()),
            false => f.write_str(", which does not filter its system calls"),
        }
    }
}

fn search(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(named) = variable(VARIABLE).filter(|value| !value.is_empty()) {
        return Some(named.into());
    }
    std::env::split_paths(&variable("PATH")?)
        .map(|dir| dir.join(PROGRAM))
        .find(|path| {
            std::fs::metadata(path)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let debian =
            Version::parse("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright");
        assert_eq!(debian, Some(OLDEST));
        let old = Version::parse("QEMU emulator version 7.2.22").expect("version");
        assert!(old < OLDEST && old.to_string() == "7.2");
        assert!(Version::parse("QEMU emulator version 11.1.50 (v11)").expect("version") > OLDEST);
        for other in ["", "bash 5.2", "QEMU emulator version x.y"] {
            assert_eq!(Version::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_variable_beats_the_path() {
        let only_path = |name: &str| (name == "PATH").then(|| "/nonexistent".into());
        assert_eq!(search(only_path), None);
        let both = |_: &str| Some("/opt/qemu".into());
        assert_eq!(search(both), Some("/opt/qemu".into()));
    }

    #[test]
    fn a_qemu_that_refuses_the_sandbox_is_used_without() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("qemu");
        for (refuses, has_sandbox) in [("none", true), ("-sandbox", false)] {
            let script = format!(
                "#!/bin/sh\n[ {refuses} != \"$1\" ] || exit 1\n\
                 echo 'QEMU emulator version 10.0.2'\n"
            );
            std::fs::write(&path, script).expect("write");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("chmod");
            let qemu = Qemu::at(path.clone()).expect("it will do");
            assert_eq!(qemu.has_sandbox(), has_sandbox);
            assert_eq!(qemu.sandbox().is_empty(), !has_sandbox);
        }
    }

    #[test]
    fn unusable_qemu_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().expect("tempdir");
        let fake = |says: &str| {
            let path = dir.path().join("qemu");
            std::fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).expect("write");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("chmod");
            Qemu::at(path).expect_err("refused").to_string()
        };
        let old = fake("QEMU emulator version 7.2.22");
        assert!(
            old.contains("7.2, nested runs need 10.0") && old.contains("backports"),
            "{old}"
        );
        assert!(fake("hello").contains("is no QEMU"));
        let missing = Qemu::at(dir.path().join("none")).expect_err("missing");
        assert!(matches!(missing, QemuError::Start { .. }));
    }
}
