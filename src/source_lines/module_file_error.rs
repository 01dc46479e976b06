//! Why there is no debug information of a module.

use std::path::PathBuf;

use debuginfo::OpenError;
use thiserror::Error;

use super::module_fetch::FetchModuleError;
use super::module_id::ModuleId;

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
    #[error(
        "{root} has no debug file of the module `{module}` for the kernel{}{}",
        .release.as_ref().map(|release| format!(" {release}")).unwrap_or_default(),
        and_fetch(.fetch.as_deref())
    )]
    MissingName {
        /// The searched folder.
        root: PathBuf,
        /// The module, as the probe names it.
        module: String,
        /// The kernel's release.
        release: Option<String>,
        /// The Debian package with the file.
        package: Option<String>,
        /// The reason why no server has given the file, if there are servers.
        fetch: Option<Box<FetchModuleError>>,
    },
    /// No file was named, and the one that this host has cannot be used.
    #[error("cannot use the debug information that this host has for the module `{module}`{}", and_fetch(.fetch.as_deref()))]
    Unusable {
        /// The module.
        module: String,
        /// The reason why no server has given the file, if there are servers.
        fetch: Option<Box<FetchModuleError>>,
        /// The cause.
        source: Box<ModuleFileError>,
    },
    /// There is no file.
    #[error(
        "{root} has no debug file of the module `{}` with the build-id {}{}{}",
        .module.name,
        .module.build_id,
        and_fetch(.fetch.as_deref()),
        .package.as_ref().map(|package| format!(": install Debian's {package}")).unwrap_or_default()
    )]
    Missing {
        /// The searched folder.
        root: PathBuf,
        /// The module.
        module: ModuleId,
        /// The Debian package with the file.
        package: Option<String>,
        /// The reason why no server has given the file, if one was asked.
        fetch: Option<Box<FetchModuleError>>,
    },
}

/// The sentence's part about the servers.
fn and_fetch(fetch: Option<&FetchModuleError>) -> String {
    let part = fetch.map(|error| format!(", and {error}"));
    part.unwrap_or_default()
}

impl ModuleFileError {
    /// Whether there is no file that can be used. A file that the user names is an error of its own.
    pub(super) const fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. } | Self::MissingName { .. } | Self::Unusable { .. }
        )
    }

    /// The same error, with the reason why no server has given the file.
    pub(super) fn with_fetch(mut self, error: FetchModuleError) -> Self {
        if let Self::Missing { fetch, .. }
        | Self::MissingName { fetch, .. }
        | Self::Unusable { fetch, .. } = &mut self
        {
            *fetch = Some(Box::new(error));
        }
        self
    }

    /// The reason why frames of `module` have no lines: this error, and the failure of the servers.
    pub(crate) fn and_no_fetch(self, module: &ModuleId, error: FetchModuleError) -> Self {
        match self {
            Self::Missing { .. } | Self::MissingName { .. } | Self::Unusable { .. } => {
                self.with_fetch(error)
            }
            Self::Open { .. } | Self::OtherBuild { .. } | Self::NoBuildId { .. } => {
                Self::Unusable {
                    module: module.name.clone(),
                    fetch: Some(Box::new(error)),
                    source: Box::new(self),
                }
            }
        }
    }

    /// What the user can do about a module of a probe.
    pub(crate) fn help(&self) -> Option<String> {
        match self {
            Self::MissingName {
                package,
                fetch,
                module,
                ..
            } => {
                let install = package.as_ref();
                let install = install.map(|package| format!("install Debian's {package}"));
                let name = module.split('@').next().unwrap_or_default();
                let by_id = matches!(fetch.as_deref(), Some(FetchModuleError::UnknownBuild));
                let by_id = by_id.then(|| {
                    format!("write the whole build-id (`kprobe:{name}@BUILDID:…`), or add the probe when the guest has loaded the module")
                });
                let named = "give the module's file of this build: --debug-info FILE.ko";
                let ways = [install, by_id, Some(named.to_owned())];
                let ways: Vec<String> = ways.into_iter().flatten().collect();
                Some(ways.join(", or "))
            }
            Self::Unusable { module, .. } => Some(format!(
                "replace the file, or give the module's file of this build: --debug-info {module}.ko"
            )),
            Self::NoBuildId { .. } => Some("link the module with --build-id".to_owned()),
            Self::Open { .. } | Self::OtherBuild { .. } | Self::Missing { .. } => None,
        }
    }
}
