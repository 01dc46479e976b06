//! A private apt for one suite. Sources, lists, cache and lock are below one directory, so names resolve within the suite, and the
//! system's apt is not touched.
//!
//! The private apt copies only the necessary parts of the system's configuration to reach a mirror: proxies, date checks, keyrings and
//! credentials, and the user of apt's sandbox.

mod configured;
mod mirror;
mod mirror_error;
mod namespace;
mod package;
mod work_dir;

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use mirror::{Mirror, mirrors};
pub use mirror_error::{MirrorError, UriError};
use namespace::can_become;
pub(crate) use package::Package;
use package::parse_package;
use tempfile::TempDir;
pub use work_dir::WorkDirError;
use work_dir::{SandboxUser, WorkDir};

use crate::digest::Digest;

/// The default user of apt's downloads. The system's configuration may name another user.
const SANDBOX_USER: &str = "_apt";

/// Maximum number of packages visited along dependencies. Further dependencies are ignored as nonsense.
const PACKAGES_MAX: usize = 32;

/// Failure of a call of apt or dpkg.
#[derive(Debug)]
pub(crate) enum ToolFailure {
    /// The program is not installed or cannot be started.
    Start {
        program: &'static str,
        source: io::Error,
    },
    /// The program reported an error; `detail` has the message.
    Exit { detail: String },
}

/// Why the private apt of a suite could not be set up.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The system's configuration of apt cannot be read.
    Configuration(ToolFailure),
    /// The sandbox's user does not exist.
    NoUser { user: String, detail: String },
    /// The private apt has no directory.
    WorkDir(WorkDirError),
}

/// The private apt of a suite.
#[derive(Debug)]
pub(crate) struct Suite {
    name: String,
    work: WorkDir,
    /// The system's configuration of apt, from `apt-config dump`. In a user namespace without the sandbox's user,
    /// the last line switches the sandbox off.
    system: String,
}

impl Suite {
    /// The apt of the suite `name`. Unless apt has a sandbox, apt works in the directory `dir` of the cache. The caller holds the suite's
    /// lock.
    pub(crate) fn open(name: &str, dir: PathBuf) -> Result<Self, OpenError> {
        let mut system = system_configuration()?;
        let work = match Downloads::of(&system)? {
            Downloads::Sandboxed(user) => WorkDir::for_sandbox(user),
            Downloads::ByRoot => {
                system += "APT::Sandbox::User \"root\";\n";
                WorkDir::in_cache(dir)
            }
            Downloads::ByUser => WorkDir::in_cache(dir),
        };
        Ok(Self {
            name: name.to_owned(),
            work: work.map_err(OpenError::WorkDir)?,
            system,
        })
    }

    /// Reads the suite's package list from `mirror`. Later calls use the list.
    pub(crate) fn update(&self, mirror: &Mirror) -> Result<(), ToolFailure> {
        let work = self.work.path();
        self.write("apt.conf", &configuration(work, &self.system))?;
        self.write("sources.list", &mirror.source_line(&self.name))?;
        self.apt("apt-get", &["-q", "update"], work).map(drop)
    }

    /// Resolves `package` to the kernel parts among its direct and indirect dependencies; without kernel parts, to `package` itself.
    pub(crate) fn resolve(&self, package: &str) -> Result<Vec<Package>, ToolFailure> {
        let meta = self.show(package)?;
        let mut seen = BTreeSet::from([package.to_owned()]);
        let mut pending: Vec<String> = meta.kernel_parts().map(str::to_owned).collect();
        if pending.is_empty() {
            return Ok(vec![meta]);
        }
        let mut found = Vec::new();
        while let Some(name) = pending.pop() {
            if seen.len() < PACKAGES_MAX && seen.insert(name.clone()) {
                let part = self.show(&name)?;
                pending.extend(part.kernel_parts().map(str::to_owned));
                found.push(part);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Downloads `package` to the file `to`, which the sandbox's user cannot reach, and compares the digest with the signed list.
    pub(crate) fn download(&self, package: &Package, to: &Path) -> Result<(), ToolFailure> {
        let work = self.work.path();
        let dir = self
            .work
            .download_dir()
            .map_err(|error| failed_io(work, &error))?;
        let exact = format!("{}={}", package.name, package.version);
        self.apt("apt-get", &["-q", "download", &exact], dir.path())?;
        let deb = only_deb(dir.path())
            .map_err(|error| failed_io(dir.path(), &error))?
            .ok_or_else(|| ToolFailure::Exit {
                detail: format!("no file came for {exact}"),
            })?;
        take(&deb, to, package.sha256)
    }

    /// Removes apt's indexes, which are many times the size of the lists.
    pub(crate) fn tidy(&self) -> io::Result<()> {
        for index in ["pkgcache.bin", "srcpkgcache.bin"] {
            match fs::remove_file(self.work.path().join("cache").join(index)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The package `name` in the suite's list.
    pub(crate) fn show(&self, name: &str) -> Result<Package, ToolFailure> {
        let arguments = ["show", "--no-all-versions", name];
        let text = self.apt("apt-cache", &arguments, self.work.path())?;
        parse_package(&text).ok_or_else(|| ToolFailure::Exit {
            detail: format!("the list's entry for {name} has no version or checksum"),
        })
    }

    fn apt(
        &self,
        program: &'static str,
        arguments: &[&str],
        dir: &Path,
    ) -> Result<String, ToolFailure> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(dir)
            .env("APT_CONFIG", self.work.path().join("apt.conf"));
        let printed = run(program, &mut command)?;
        match lost_sandbox(&printed.stderr) {
            Some(notice) if self.work.has_sandbox() => Err(ToolFailure::Exit {
                detail: format!("apt gave up its sandbox: {notice}"),
            }),
            _ => Ok(printed.stdout),
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), ToolFailure> {
        let path = self.work.path().join(name);
        fs::write(&path, text).map_err(|error| failed_io(&path, &error))
    }
}

/// A directory for the download of a single file by the system's apt.
#[derive(Debug)]
pub(crate) struct DownloadPlace {
    dir: TempDir,
    /// The parent of the directory, if apt has a sandbox.
    work: Option<WorkDir>,
    /// Whether apt has to be told that it has no sandbox.
    by_root: bool,
}

impl DownloadPlace {
    /// Makes the directory.
    pub(crate) fn make() -> Result<Self, OpenError> {
        let downloads = Downloads::of(&system_configuration()?)?;
        let by_root = matches!(downloads, Downloads::ByRoot);
        let failed =
            |error: io::Error| OpenError::Configuration(failed_io(&env::temp_dir(), &error));
        let (dir, work) = match downloads {
            Downloads::Sandboxed(user) => {
                let work = WorkDir::for_sandbox(user).map_err(OpenError::WorkDir)?;
                (work.download_dir().map_err(failed)?, Some(work))
            }
            Downloads::ByRoot | Downloads::ByUser => (tempfile::tempdir().map_err(failed)?, None),
        };
        Ok(Self { dir, work, by_root })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The options of apt's programs.
    pub(crate) fn options(&self) -> &'static [&'static str] {
        match self.by_root {
            true => &["-o", "APT::Sandbox::User=root"],
            false => &[],
        }
    }

    /// Whether apt has a sandbox, which must stay on.
    pub(crate) fn has_sandbox(&self) -> bool {
        self.work.is_some()
    }
}

/// The user of apt's downloads.
enum Downloads {
    /// The user of apt's sandbox, if root starts apt.
    Sandboxed(SandboxUser),
    /// Root, in a user namespace without the sandbox's user.
    ByRoot,
    /// The user of this process, and root if the administrator has switched the sandbox off.
    ByUser,
}

impl Downloads {
    /// The user by the system's configuration.
    fn of(system: &str) -> Result<Self, OpenError> {
        match sandbox_user(system) {
            Some(user) if rustix::process::geteuid().is_root() => {
                let user = with_uid(user)?;
                Ok(match can_become(user.uid) {
                    true => Self::Sandboxed(user),
                    false => Self::ByRoot,
                })
            }
            _ => Ok(Self::ByUser),
        }
    }
}

/// The system's configuration of apt.
fn system_configuration() -> Result<String, OpenError> {
    let dump = run("apt-config", Command::new("apt-config").arg("dump"));
    Ok(dump.map_err(OpenError::Configuration)?.stdout)
}

/// Unpacks the contents of the package file `deb` into the directory `into`.
pub(crate) fn unpack(deb: &Path, into: &Path) -> Result<(), ToolFailure> {
    run(
        "dpkg-deb",
        Command::new("dpkg-deb").arg("-x").arg(deb).arg(into),
    )
    .map(drop)
}

/// Copies the package file `deb` to `to` and compares the copy's digest.
fn take(deb: &Path, to: &Path, expected: Digest) -> Result<(), ToolFailure> {
    let actual = fs::copy(deb, to)
        .and_then(|_| Digest::of_reader(File::open(to)?))
        .map_err(|error| failed_io(to, &error))?;
    if actual != expected {
        return Err(ToolFailure::Exit {
            detail: format!("its sha256 is {actual}, but the signed list has {expected}"),
        });
    }
    Ok(())
}

/// The package file in `dir`.
fn only_deb(dir: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_file() && path.extension().is_some_and(|end| end == "deb") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// The user of apt's downloads if root starts apt. The administrator can switch the sandbox off, as is usual on hosts with only one user.
fn sandbox_user(system: &str) -> Option<&str> {
    let user = system.lines().find_map(|line| {
        line.strip_prefix("APT::Sandbox::User \"")?
            .strip_suffix("\";")
    });
    Some(user.unwrap_or(SANDBOX_USER)).filter(|user| !["", "root"].contains(user))
}

fn with_uid(user: &str) -> Result<SandboxUser, OpenError> {
    let no_user = |detail| OpenError::NoUser {
        user: user.to_owned(),
        detail,
    };
    let printed = run("id", Command::new("id").args(["-u", "--", user])).map_err(|failure| {
        no_user(match failure {
            ToolFailure::Start { source, .. } => source.to_string(),
            ToolFailure::Exit { detail } => detail,
        })
    })?;
    let uid = printed.stdout.trim();
    Ok(SandboxUser {
        name: user.to_owned(),
        uid: uid
            .parse()
            .map_err(|_| no_user(format!("id printed {uid:?}")))?,
    })
}

/// apt's notice of a download as root.
pub(crate) fn lost_sandbox(stderr: &str) -> Option<&str> {
    stderr.lines().find(|line| {
        ["performed unsandboxed", "No sandbox user"]
            .iter()
            .any(|notice| line.contains(notice))
    })
}

/// The output of a program.
struct Printed {
    stdout: String,
    stderr: String,
}

fn run(program: &'static str, command: &mut Command) -> Result<Printed, ToolFailure> {
    let output = command
        .env("LC_ALL", "C")
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|source| ToolFailure::Start { program, source })?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Ok(Printed {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
        });
    }
    Err(ToolFailure::Exit {
        detail: complaint(&stderr),
    })
}

/// The first error in the output of apt or dpkg, without the mark.
pub(crate) fn complaint(stderr: &str) -> String {
    let line = stderr
        .lines()
        .find_map(|line| {
            line.strip_prefix("E: ")
                .or_else(|| line.strip_prefix("dpkg-deb: error: "))
        })
        .or_else(|| stderr.lines().rfind(|line| !line.trim().is_empty()))
        .unwrap_or("it failed without a word");
    line.trim().to_owned()
}

fn failed_io(path: &Path, error: &io::Error) -> ToolFailure {
    ToolFailure::Exit {
        detail: format!("{}: {error}", path.display()),
    }
}

fn configuration(dir: &Path, system: &str) -> String {
    let dir = dir.display();
    let own = format!(
        r#"Dir::Etc::main "/dev/null";
Dir::Etc::parts "{dir}/none";
Dir::Etc::sourcelist "{dir}/sources.list";
Dir::Etc::sourceparts "{dir}/none";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{dir}/none";
Dir::State::lists "{dir}/lists";
Dir::State::status "/dev/null";
Dir::Cache "{dir}/cache";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::GzipIndexes "true";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
"#
    );
    let carried = system.lines().filter(|line| {
        [
            "Acquire::http",
            "Acquire::https",
            "Acquire::Check-Valid-Until",
            "Acquire::Check-Date",
            "APT::Sandbox",
        ]
        .iter()
        .any(|name| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([' ', ':']))
        })
    });
    carried.fold(own, |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_to_reach_a_mirror_are_copied() {
        let system = "Acquire \"\";\nAcquire::http::Proxy \"http://proxy:3128\";\n\
                      Acquire::Check-Valid-Until \"false\";\nAcquire::IndexTargets::deb \"\";\n\
                      Acquire::httpsx \"1\";\nDir::Cache \"var/cache/apt\";\n";
        let text = configuration(Path::new("/c/apt/sid"), system);
        assert!(text.contains("Acquire::http::Proxy \"http://proxy:3128\";\n"));
        assert!(text.contains("Acquire::Check-Valid-Until \"false\";\n"));
        assert!(!text.contains("httpsx") && !text.contains("var/cache/apt"));
        assert!(!text.contains("IndexTargets::deb \"\""));
        assert!(text.contains("Dir::State::lists \"/c/apt/sid/lists\";"));
    }

    #[test]
    fn sandbox_is_the_one_of_the_systems_apt() {
        let off = "APT::Sandbox::User \"root\";";
        let text = |system| configuration(Path::new("/c"), system);
        assert!(!text("").contains("Sandbox"));
        assert!(text(off).contains(off));
        assert_eq!(sandbox_user(off), None);
        assert_eq!(sandbox_user("APT::Sandbox::User \"\";"), None);
        assert_eq!(sandbox_user("APT::Architecture \"amd64\";\n"), Some("_apt"));
        let other = "APT::Sandbox \"\";\nAPT::Sandbox::User \"fetcher\";\n";
        assert_eq!(sandbox_user(other), Some("fetcher"));
    }

    #[test]
    fn notice_that_the_sandbox_is_off_is_found() {
        let notice = "W: Download is performed unsandboxed as root as file '/root/a.deb' couldn't \
                      be accessed by user '_apt'. - pkgAcquire::Run (13: Permission denied)";
        assert_eq!(lost_sandbox(&format!("W: slow\n{notice}\n")), Some(notice));
        assert_eq!(lost_sandbox("W: slow\n"), None);
    }

    #[test]
    fn package_with_another_digest_than_the_list_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (deb, to) = (dir.path().join("a.deb"), dir.path().join("copy"));
        fs::write(&deb, "package").expect("write");
        assert_eq!(only_deb(dir.path()).expect("list"), Some(deb.clone()));
        take(&deb, &to, Digest::of(b"package")).expect("as listed");
        assert_eq!(fs::read(&to).expect("read"), b"package");
        let Err(ToolFailure::Exit { detail }) = take(&deb, &to, Digest::of(b"other")) else {
            panic!("it was taken");
        };
        assert!(
            detail.contains(&Digest::of(b"other").to_string()),
            "{detail}"
        );
    }

    #[test]
    fn the_first_error_is_the_one_to_show() {
        let text = "W: slow\nE: Failed to fetch http://x 404\nE: Some index files failed\n";
        assert_eq!(complaint(text), "Failed to fetch http://x 404");
        assert_eq!(complaint("odd\n\n"), "odd");
    }
}
