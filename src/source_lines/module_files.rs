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

use super::debug_file::MayFetch;
use super::debuginfod::Debuginfod;
use super::identity::{DEBUG_ROOT, KernelIdentity, debug_file_of};
use super::known_builds::KnownBuilds;
use super::module_fetch::{FetchModuleError, ModuleFetcher};
use super::module_file_error::ModuleFileError;
use super::module_id::ModuleId;
use super::named_files::{NamedFiles, module_of};

/// Where distributions put the modules of a release, below the folder of debug files.
const FOLDERS: [&str; 2] = ["lib/modules", "usr/lib/modules"];
/// The most files of a release. A distribution's kernel has some thousand modules.
const MAX_FILES: usize = 1 << 16;
/// Folders in each other.
const MAX_DEPTH: usize = 16;
/// The shortest build-id that linkers write. Fewer digits are the beginning of one.
const MIN_ID_DIGITS: usize = 16;

/// The debug files of a kernel's modules on this host.
#[derive(Debug)]
pub(crate) struct ModuleFiles {
    /// The folder with all debug files.
    root: PathBuf,
    /// The kernel's release, which is the name of the folder with its modules.
    release: Option<String>,
    /// The cache of debuginfod, if the environment names servers.
    servers: Option<Debuginfod>,
    /// The servers; made when a file is first fetched.
    fetcher: Option<ModuleFetcher>,
    /// The builds that the guest has or may load.
    builds: KnownBuilds,
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
            fetcher: None,
            builds: KnownBuilds::default(),
            package: kernel.package(),
            sources: info.map_or_else(Vec::new, |info| info.source_directories().to_vec()),
            named,
            by_name: None,
        }
    }

    /// The same files, for a guest with modules of these `builds`.
    pub(crate) fn with_builds(self, builds: KnownBuilds) -> Self {
        Self { builds, ..self }
    }

    /// The same files, with the fetcher of other files, if any: the limits and the answers of servers are shared.
    pub(crate) fn with_fetcher(self, fetcher: Option<ModuleFetcher>) -> Self {
        Self { fetcher, ..self }
    }

    /// The fetcher for other files, if a file was fetched.
    pub(crate) fn into_fetcher(self) -> Option<ModuleFetcher> {
        self.fetcher
    }

    /// The files of a kernel with this release below `root`.
    #[cfg(test)]
    pub(crate) fn below(root: &Path, release: &str) -> Self {
        Self {
            root: root.to_owned(),
            release: Some(release.to_owned()),
            servers: None,
            fetcher: None,
            builds: KnownBuilds::default(),
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
            fetch: None,
        }))
    }

    /// Opens a file of a module that the guest may load, and returns the file's build-id. Only a running guest says which build is loaded.
    /// If the user names files of the module, no other file counts: a probe in another build would be refused later, and less clearly.
    /// Otherwise the known build of the module comes first, if need be from a server, and then a file of this host of any build.
    pub(crate) fn open_named(
        &mut self,
        module: &ModuleSpec,
        may_fetch: MayFetch<'_>,
    ) -> Result<(DebugInfo, String), ModuleFileError> {
        if let Some(named) = self.named.modules.get(&module.name).cloned() {
            return self.first_of(named, module);
        }
        let (mut failed, mut unusable) = (None, None);
        let builds = self.builds_of(module);
        for build_id in &builds {
            let id = ModuleId {
                name: module.name.clone(),
                build_id: build_id.clone(),
            };
            match self.open(&id) {
                Ok(info) => return Ok((info, build_id.clone())),
                Err(ModuleFileError::Missing { .. }) => (),
                Err(error) => unusable = Some(error),
            }
            match self.fetch(&id, may_fetch) {
                Some(Ok(())) => return Ok((self.open(&id)?, build_id.clone())),
                Some(Err(error)) => failed = Some(error),
                None => (),
            }
        }
        if builds.is_empty() && self.servers.is_some() {
            failed = Some(FetchModuleError::UnknownBuild);
        }
        let found = self.called(&module.name);
        self.first_of(found, module).map_err(|error| {
            let error = match (error, unusable) {
                (error @ ModuleFileError::MissingName { .. }, None) => error,
                (ModuleFileError::MissingName { .. }, Some(error)) | (error, _) => {
                    ModuleFileError::Unusable {
                        module: module.name.clone(),
                        fetch: None,
                        source: Box::new(error),
                    }
                }
            };
            match failed {
                Some(failed) => error.with_fetch(failed),
                None => error,
            }
        })
    }

    /// The build-ids that `module` may have, the likeliest first.
    fn builds_of(&self, module: &ModuleSpec) -> Vec<String> {
        let written = module.build.clone();
        let written = written.filter(|digits| digits.len() >= MIN_ID_DIGITS);
        let known = self.builds.of(&module.name);
        let known = known.filter(|known| module.is_of_build(Some(known)));
        let mut builds: Vec<String> = known.into_iter().chain(written).collect();
        builds.dedup();
        builds
    }

    /// Fetches the file of `module` into the cache. `None` if there are no servers, or if the process may not.
    fn fetch(
        &mut self,
        module: &ModuleId,
        may_fetch: MayFetch<'_>,
    ) -> Option<Result<(), FetchModuleError>> {
        let MayFetch::Yes(say) = may_fetch else {
            return None;
        };
        let servers = self.servers.clone()?;
        let fetcher = self
            .fetcher
            .get_or_insert_with(|| ModuleFetcher::new(servers));
        Some(fetcher.fetch(module, say, &|| true))
    }

    /// Opens the first of `files` that is a file of `module`.
    fn first_of(
        &self,
        files: Vec<PathBuf>,
        module: &ModuleSpec,
    ) -> Result<(DebugInfo, String), ModuleFileError> {
        let mut last = None;
        for path in files {
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
            module: module.to_string(),
            release: self.release.clone(),
            package: self.package.clone(),
            fetch: None,
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
        if !module.has_build_id() {
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
