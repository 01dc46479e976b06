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
use manifest::ModuleSpec;
use thiserror::Error;

use super::debuginfod::Debuginfod;
use super::identity::{DEBUG_ROOT, KernelIdentity, debug_file_of};
use super::named_files::{NamedFiles, module_of};

/// Where distributions put the modules of a release, below the folder of debug files.
const FOLDERS: [&str; 2] = ["lib/modules", "usr/lib/modules"];
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
    /// A file has no build-id, by which the engine knows the module.
    #[error("the debug file {path} of the module `{module}` has no build-id")]
    NoBuildId {
        /// The file.
        path: PathBuf,
        /// The module.
        module: String,
    },
    /// There is no file of a module that the guest need not have loaded.
    #[error("{root} has no debug file of the module `{module}` for the kernel{}", .release.as_ref().map(|release| format!(" {release}")).unwrap_or_default())]
    MissingName {
        /// The searched folder.
        root: PathBuf,
        /// The module.
        module: ModuleSpec,
        /// The kernel's release.
        release: Option<String>,
        /// The Debian package with the file.
        package: Option<String>,
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

impl ModuleFileError {
    /// Whether there is no file.
    pub(super) const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::MissingName { .. })
    }

    /// What the user can do about a module of a probe.
    pub(crate) fn help(&self) -> Option<String> {
        match self {
            Self::MissingName { package, .. } => {
                let install = package.as_ref();
                let install = install.map(|package| format!("install Debian's {package}, or "));
                let install = install.unwrap_or_default();
                Some(format!(
                    "{install}give the module's file of this build: --debug-info FILE.ko"
                ))
            }
            Self::NoBuildId { .. } => Some("link the module with --build-id".to_owned()),
            Self::Open { .. } | Self::OtherBuild { .. } | Self::Missing { .. } => None,
        }
    }
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
    /// The files that the user names.
    named: NamedFiles,
    /// The files of each module, by its name; read when a module is first looked up by its name.
    by_name: Option<HashMap<String, Vec<PathBuf>>>,
}

impl ModuleFiles {
    /// The debug files of `kernel`'s modules: the user's `named` files, and the files of this host. Paths in the kernel's debug information `info` show
    /// where the sources are.
    pub(crate) fn new(
        kernel: &KernelIdentity<'_>,
        info: Option<&DebugInfo>,
        named: NamedFiles,
    ) -> Self {
        Self {
            root: DEBUG_ROOT.into(),
            release: kernel.release().map(str::to_owned),
            servers: Debuginfod::from_env(),
            package: kernel.package(),
            sources: info.map_or_else(Vec::new, |info| info.source_directories().to_vec()),
            named,
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
            named: NamedFiles::default(),
            by_name: None,
        }
    }

    /// The files that are `named`, and no others.
    #[cfg(test)]
    pub(super) fn of_named(named: NamedFiles) -> Self {
        Self {
            named,
            ..Self::below(Path::new("/nonexistent"), "6.1")
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

    /// Opens the first file of a module that the guest may load, and returns the file's build-id. Only a running guest says which build is loaded.
    /// If the user names files of the module, no other file counts: a probe in another build would be refused later, and less clearly.
    pub(super) fn open_named(
        &mut self,
        module: &ModuleSpec,
    ) -> Result<(DebugInfo, String), ModuleFileError> {
        let mut last = None;
        let named = self.named.modules.get(&module.name).cloned();
        for path in named.unwrap_or_else(|| self.called(&module.name)) {
            let name = module.name.clone();
            let opened = DebugInfo::open_module(&path, &self.sources);
            let build_id = opened.as_ref().ok().and_then(DebugInfo::build_id);
            let build_id = build_id.map(ToString::to_string);
            match (opened, build_id) {
                (Ok(info), Some(build_id)) if module.is_of_build(Some(&build_id)) => {
                    return Ok((info, build_id));
                }
                // Another build of the module.
                (Ok(_), Some(_)) => (),
                (Ok(_), None) => last = Some(ModuleFileError::NoBuildId { path, module: name }),
                (Err(source), _) => {
                    last = Some(ModuleFileError::Open {
                        path,
                        module: name,
                        source,
                    });
                }
            }
        }
        Err(last.unwrap_or_else(|| ModuleFileError::MissingName {
            root: self.root.clone(),
            module: module.clone(),
            release: self.release.clone(),
            package: self.package.clone(),
        }))
    }

    /// The files with the name of the module `name`, those of the user first.
    fn called(&mut self, name: &str) -> Vec<PathBuf> {
        let (root, release) = (&self.root, self.release.as_deref());
        let by_name = self.by_name.get_or_insert_with(|| {
            let mut found = HashMap::new();
            for folder in FOLDERS {
                let folder = release.map(|release| root.join(folder).join(release));
                folder.iter().for_each(|folder| collect(folder, &mut found));
            }
            for files in found.values_mut() {
                files.sort_by_cached_key(|file| (!is_update(file), file.clone()));
            }
            found
        });
        let named = self.named.modules.get(name).into_iter().flatten();
        let found = by_name.get(name).into_iter().flatten();
        named.chain(found).cloned().collect()
    }

    /// The files that may have the debug information, the likeliest first.
    fn candidates(&mut self, module: &ModuleId) -> Vec<PathBuf> {
        let is_id = module.build_id.len() <= MAX_ID_DIGITS
            && module.build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id {
            return Vec::new();
        }
        let by_id = debug_file_of(&self.root, &module.build_id);
        let called = self.called(&module.name);
        let servers = self.servers.as_ref();
        let cached = servers.and_then(|servers| servers.cached(&module.build_id));
        by_id.into_iter().chain(called).chain(cached).collect()
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

/// Whether the module at `path` replaces the kernel's own module of the name, as depmod decides unless it is configured.
fn is_update(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "updates")
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
            } else if let Some(name) = module_of(&entry.path()) {
                found.entry(name).or_default().push(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests;
