//! The debug files of modules.
//!
//! A stack names the module and the build-id that the guest's memory has. A guest may write anything there: the name of a module is looked up
//! among the names of files, and a build-id has hexadecimal digits only.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use debuginfo::{DebugInfo, OpenError};
use files::ReadError;
use thiserror::Error;

use super::debuginfod::Debuginfod;
use super::identity::{DEBUG_ROOT, KernelIdentity, debug_file_of};

/// Where distributions put the modules of a release, below the folder of debug files.
const FOLDERS: [&str; 2] = ["lib/modules", "usr/lib/modules"];
/// The endings of a module's file and of its debug file.
const ENDINGS: [&str; 6] = [
    ".ko.debug",
    ".ko",
    ".ko.debug.xz",
    ".ko.debug.zst",
    ".ko.xz",
    ".ko.zst",
];
/// The most files of a release. A distribution's kernel has some thousand modules.
const MAX_FILES: usize = 1 << 16;
/// Folders in each other.
const MAX_DEPTH: usize = 16;
/// As many digits as the longest build-id has.
const MAX_ID_DIGITS: usize = 128;

/// A module of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModuleId {
    /// The name, as `lsmod` prints it.
    pub(crate) name: String,
    /// The build-id in hexadecimal digits.
    pub(crate) build_id: String,
}

/// Why there is no debug information of a module.
#[derive(Debug, Error)]
pub(crate) enum ModuleFileError {
    /// A file cannot be used.
    #[error("cannot use the debug file {path} of the module `{module}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// The module.
        module: String,
        /// The cause.
        source: OpenError,
    },
    /// A file belongs to another build of the module.
    #[error(
        "the debug file {path} belongs to another build of the module `{}`: its build-id is {theirs}, and the guest's module has {}",
        .module.name,
        .module.build_id
    )]
    OtherBuild {
        /// The file.
        path: PathBuf,
        /// The module.
        module: ModuleId,
        /// The file's build-id.
        theirs: String,
    },
    /// There is no file.
    #[error(
        "{root} has no debug file of the module `{}` with the build-id {}{}",
        .module.name,
        .module.build_id,
        .package.as_ref().map(|package| format!(": install Debian's {package}")).unwrap_or_default()
    )]
    Missing {
        /// The searched folder.
        root: PathBuf,
        /// The module.
        module: ModuleId,
        /// The Debian package with the file.
        package: Option<String>,
    },
}

/// The debug files of a kernel's modules on this host.
#[derive(Debug)]
pub(crate) struct ModuleFiles {
    /// The folder with all debug files.
    root: PathBuf,
    /// The kernel's release, which is the name of the folder with its modules.
    release: Option<String>,
    /// The cache of debuginfod, if the environment names servers.
    servers: Option<Debuginfod>,
    /// The Debian package with the files.
    package: Option<String>,
    /// The directories of the kernel's sources.
    sources: Vec<String>,
    /// The files of each module, by its name; read when a module is first looked up by its name.
    by_name: Option<HashMap<String, Vec<PathBuf>>>,
}

impl ModuleFiles {
    /// The files of the modules of `kernel`, of which `info` is the debug information.
    pub(crate) fn new(kernel: &KernelIdentity<'_>, info: &DebugInfo) -> Self {
        Self {
            root: DEBUG_ROOT.into(),
            release: kernel.release().map(str::to_owned),
            servers: Debuginfod::from_env(),
            package: kernel.package(),
            sources: info.source_directories().to_vec(),
            by_name: None,
        }
    }

    /// The files of a kernel with this release below `root`.
    #[cfg(test)]
    pub(crate) fn below(root: &Path, release: &str) -> Self {
        Self {
            root: root.to_owned(),
            release: Some(release.to_owned()),
            servers: None,
            package: None,
            sources: Vec::new(),
            by_name: None,
        }
    }

    /// Opens the first file that belongs to `module`.
    pub(crate) fn open(&mut self, module: &ModuleId) -> Result<DebugInfo, ModuleFileError> {
        let mut last = None;
        for path in self.candidates(module) {
            match self.candidate(&path, module) {
                Ok(info) => return Ok(info),
                Err(error) => last = error.or(last),
            }
        }
        Err(last.unwrap_or_else(|| ModuleFileError::Missing {
            root: self.root.clone(),
            module: module.clone(),
            package: self.package.clone(),
        }))
    }

    /// The files that may have the debug information, the likeliest first.
    fn candidates(&mut self, module: &ModuleId) -> Vec<PathBuf> {
        let is_id = module.build_id.len() <= MAX_ID_DIGITS
            && module.build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id {
            return Vec::new();
        }
        let by_id = debug_file_of(&self.root, &module.build_id);
        let (root, release) = (&self.root, self.release.as_deref());
        let by_name = self.by_name.get_or_insert_with(|| {
            let mut found = HashMap::new();
            for folder in FOLDERS {
                let folder = release.map(|release| root.join(folder).join(release));
                folder.iter().for_each(|folder| collect(folder, &mut found));
            }
            found
        });
        let named = by_name.get(&module.name).into_iter().flatten().cloned();
        let servers = self.servers.as_ref();
        let cached = servers.and_then(|servers| servers.cached(&module.build_id));
        by_id.into_iter().chain(named).chain(cached).collect()
    }

    /// Opens `path`. `Err(None)` if there is no such file.
    fn candidate(
        &self,
        path: &Path,
        module: &ModuleId,
    ) -> Result<DebugInfo, Option<ModuleFileError>> {
        let info = DebugInfo::open_module(path, &self.sources).map_err(|source| {
            let is_missing = matches!(
                &source,
                OpenError::File(ReadError::Io(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            );
            (!is_missing).then(|| ModuleFileError::Open {
                path: path.to_owned(),
                module: module.name.clone(),
                source,
            })
        })?;
        let theirs = info.build_id().map(ToString::to_string);
        match theirs {
            Some(theirs) if theirs == module.build_id => Ok(info),
            theirs => Err(Some(ModuleFileError::OtherBuild {
                path: path.to_owned(),
                module: module.clone(),
                theirs: theirs.unwrap_or_else(|| "missing".to_owned()),
            })),
        }
    }
}

/// Adds the files of modules in `folder` and below to `found`, by the names of the modules. Folders that cannot be read are left out.
fn collect(folder: &Path, found: &mut HashMap<String, Vec<PathBuf>>) {
    let mut folders = vec![(folder.to_owned(), 0)];
    let mut left = MAX_FILES;
    while let Some((folder, depth)) = folders.pop() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries {
            let Some(after) = left.checked_sub(1) else {
                return;
            };
            left = after;
            // A link to a folder could lead back.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && depth < MAX_DEPTH {
                folders.push((entry.path(), depth + 1));
            } else if let Some(name) = entry.file_name().to_str().and_then(module_name) {
                found.entry(name).or_default().push(entry.path());
            }
        }
    }
}

/// The name of the module with the file `file`.
fn module_name(file: &str) -> Option<String> {
    let mut endings = ENDINGS.iter();
    let stem = endings.find_map(|ending| file.strip_suffix(ending))?;
    Some(stem.replace('-', "_"))
}

#[cfg(test)]
mod tests;
