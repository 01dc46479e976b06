//! An apt of its own for one suite: its sources, lists, cache and lock are all below one
//! directory, so that names resolve within the suite and the system's apt is not touched.
//!
//! Only what reaching a mirror takes is copied from the system's configuration: proxies, date
//! checks, keyrings and credentials.

mod configured;
mod mirror;
mod mirror_error;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use mirror::{Mirror, mirrors};
pub use mirror_error::{MirrorError, UriError};

use crate::digest::Digest;
use crate::directory::{self, DirectoryError};

/// What following dependencies may visit before it is taken for nonsense.
const PACKAGES_MAX: usize = 32;

/// How a call of apt or dpkg ended other than well.
#[derive(Debug)]
pub(crate) enum ToolFailure {
    /// The program is not installed or cannot be started.
    Start {
        program: &'static str,
        source: io::Error,
    },
    /// It reported an error; the lines that say what.
    Exit { detail: String },
}

/// A package as the suite's list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: Digest,
    pub(crate) bytes: u64,
    /// The first alternative of each dependency.
    depends: Vec<String>,
}

impl Package {
    /// Those of its dependencies that are parts of a kernel.
    fn kernel_parts(&self) -> impl Iterator<Item = &str> {
        self.depends
            .iter()
            .map(String::as_str)
            .filter(|name| is_kernel_part(name))
    }
}

/// The private apt of one suite.
#[derive(Debug)]
pub(crate) struct Suite {
    name: String,
    dir: PathBuf,
}

impl Suite {
    /// The apt of the suite `name` in the directory `dir`, which is made.
    pub(crate) fn open(name: &str, dir: PathBuf) -> Result<Self, DirectoryError> {
        for part in ["lists/partial", "cache/archives/partial", "none"] {
            directory::make_below(&dir, Path::new(part))?;
        }
        Ok(Self {
            name: name.to_owned(),
            dir,
        })
    }

    /// The file whose lock says that someone works with this suite.
    pub(crate) fn lock_file(&self) -> io::Result<File> {
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.dir.join("lock"))
    }

    /// Reads the suite's package list from `mirror`. Later calls use what this one found.
    pub(crate) fn update(&self, mirror: &Mirror) -> Result<(), ToolFailure> {
        let system = run("apt-config", Command::new("apt-config").arg("dump"))?;
        self.write("apt.conf", &configuration(&self.dir, &system))?;
        self.write("sources.list", &mirror.source_line(&self.name))?;
        self.apt("apt-get", &["-q", "update"], &self.dir).map(drop)
    }

    /// The packages that hold what `package` stands for: the parts of a kernel that it leads
    /// to, or itself if it leads to none.
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

    /// Downloads `package` into the empty directory `into` and returns the file. Apt checks it
    /// against the signed list.
    pub(crate) fn download(&self, package: &Package, into: &Path) -> Result<PathBuf, ToolFailure> {
        let exact = format!("{}={}", package.name, package.version);
        self.apt("apt-get", &["-q", "download", &exact], into)?;
        let files = fs::read_dir(into).map_err(|error| failed_io(into, &error))?;
        files
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| ToolFailure::Exit {
                detail: format!("no file came for {exact}"),
            })
    }

    /// Removes apt's indexes, many times the size of the lists that they are made from.
    pub(crate) fn tidy(&self) -> io::Result<()> {
        for index in ["pkgcache.bin", "srcpkgcache.bin"] {
            match fs::remove_file(self.dir.join("cache").join(index)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn show(&self, name: &str) -> Result<Package, ToolFailure> {
        let text = self.apt("apt-cache", &["show", "--no-all-versions", name], &self.dir)?;
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
            .env("APT_CONFIG", self.dir.join("apt.conf"));
        run(program, &mut command)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), ToolFailure> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(|error| failed_io(&path, &error))
    }
}

/// Unpacks the contents of the package file `deb` into the directory `into`.
pub(crate) fn unpack(deb: &Path, into: &Path) -> Result<(), ToolFailure> {
    run(
        "dpkg-deb",
        Command::new("dpkg-deb").arg("-x").arg(deb).arg(into),
    )
    .map(drop)
}

fn run(program: &'static str, command: &mut Command) -> Result<String, ToolFailure> {
    let output = command
        .env("LC_ALL", "C")
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|source| ToolFailure::Start { program, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(ToolFailure::Exit {
        detail: complaint(&String::from_utf8_lossy(&output.stderr)),
    })
}

/// The first error that apt or dpkg printed, without its mark.
fn complaint(stderr: &str) -> String {
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
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::GzipIndexes "true";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
"#
    );
    let carried = system.lines().filter(|line| {
        ["http", "https", "Check-Valid-Until", "Check-Date"]
            .iter()
            .any(|name| {
                line.strip_prefix("Acquire::")
                    .and_then(|rest| rest.strip_prefix(name))
                    .is_some_and(|rest| rest.starts_with([' ', ':']))
            })
    });
    carried.fold(own, |text, line| text + line + "\n")
}

fn is_kernel_part(package: &str) -> bool {
    [
        "linux-image-",
        "linux-binary-",
        "linux-modules-",
        "linux-base-",
    ]
    .iter()
    .any(|prefix| package.starts_with(prefix))
}

fn parse_package(text: &str) -> Option<Package> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .map(str::to_owned)
    };
    let first_name = |dependency: &str| {
        dependency
            .split(['|', '(', ':'])
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    Some(Package {
        name: field("Package")?,
        version: field("Version")?,
        sha256: field("SHA256")?.parse().ok()?,
        bytes: field("Size")?.parse().ok()?,
        depends: field("Depends")
            .unwrap_or_default()
            .split(',')
            .map(first_name)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_entry_is_read() {
        let text = format!(
            "Package: linux-image-7.2-cloud-amd64\nVersion: 7.2.13-1\nDepends: dracut | \
             initramfs-tools (>= 0.1), linux-binary-7.2-cloud-amd64 (= 7.2.13-1), \
             linux-modules-7.2-cloud-amd64\nSize: 1916\nSHA256: {}\n",
            Digest::of(b"deb")
        );
        let package = parse_package(&text).expect("package");
        assert_eq!(package.sha256, Digest::of(b"deb"));
        assert_eq!(
            (package.version.as_str(), package.bytes),
            ("7.2.13-1", 1916)
        );
        let parts: Vec<_> = package
            .depends
            .iter()
            .filter(|d| is_kernel_part(d))
            .collect();
        assert_eq!(
            parts,
            [
                "linux-binary-7.2-cloud-amd64",
                "linux-modules-7.2-cloud-amd64"
            ]
        );
        assert_eq!(parse_package("Package: x\nVersion: 1\n"), None);
        assert!(!is_kernel_part("linux-base"));
    }

    #[test]
    fn only_what_reaching_a_mirror_takes_is_copied() {
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
    fn the_first_error_is_the_one_to_show() {
        let text = "W: slow\nE: Failed to fetch http://x 404\nE: Some index files failed\n";
        assert_eq!(complaint(text), "Failed to fetch http://x 404");
        assert_eq!(complaint("odd\n\n"), "odd");
    }
}
