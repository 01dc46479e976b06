//! The fetch of modules' debug files from the servers of debuginfod.
//!
//! The guest says which modules it has, and may name any number of builds that do not exist. So a command fetches a limited number of files
//! and bytes, asks for each build once, and asks a server that has failed no more.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use debuginfo::module_build_id;
use errors::chain;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::debuginfod::{Debuginfod, Fault, FetchFileError, FetchRequest, MODULE_LIMITS};
use super::module_id::ModuleId;

/// The most builds for which a command asks.
const MAX_MODULES: u32 = 64;
/// The most bytes that a command fetches.
const MAX_BYTES: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Why the debug file of a module does not come from a server.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FetchModuleError {
    /// No server has the file.
    #[error("no server of DEBUGINFOD_URLS has the file ({servers})")]
    NotFound {
        /// The servers.
        servers: String,
    },
    /// A server, the network, the fetched file or the cache.
    #[error("{detail}")]
    Failed {
        /// The error with its causes.
        detail: String,
    },
    /// All servers have failed before, or this host.
    #[error("no server of DEBUGINFOD_URLS is asked after a failure: {detail}")]
    FailedBefore {
        /// The failure.
        detail: String,
    },
    /// The command has fetched enough.
    #[error("{MAX_MODULES} modules, or {} MiB, are the most that a command fetches", MAX_BYTES / MIB)]
    Limit,
    /// Servers have files by build-id, and the guest's module is not known yet.
    #[error(
        "DEBUGINFOD_URLS has files by build-id, and the module's is known only after the guest has loaded the module"
    )]
    UnknownBuild,
    /// The process that fetches works on, and nothing waits for it any more.
    #[error(
        "it had not been fetched when the wait for fetches ended: a later run finds it in the cache"
    )]
    Late,
    /// The process that fetches has ended.
    #[error("the process that fetches debug files has ended: {detail}")]
    NoProcess {
        /// The failed read or write.
        detail: String,
    },
}

/// A way to fetch the debug file of a module into the cache.
pub(crate) struct ModuleFetch(Box<FetchFunction>);

type FetchFunction = dyn FnMut(&ModuleId) -> Result<(), FetchModuleError> + Send;

impl ModuleFetch {
    /// Fetches by `fetch`.
    pub(crate) fn new(
        fetch: impl FnMut(&ModuleId) -> Result<(), FetchModuleError> + Send + 'static,
    ) -> Self {
        Self(Box::new(fetch))
    }

    /// The same way; `say` gets the name of each module first.
    pub(crate) fn with_progress(mut self, say: impl Fn(String) + Send + 'static) -> Self {
        Self::new(move |module| {
            let name = &module.name;
            say(format!("fetching the debug file of the module `{name}`"));
            self.fetch(module)
        })
    }

    /// Fetches the debug file of `module`.
    pub(crate) fn fetch(&mut self, module: &ModuleId) -> Result<(), FetchModuleError> {
        (self.0)(module)
    }
}

impl fmt::Debug for ModuleFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleFetch").finish_non_exhaustive()
    }
}

/// The servers, and what was asked of them.
#[derive(Debug)]
pub(crate) struct ModuleFetcher {
    servers: Debuginfod,
    left: u32,
    left_bytes: Cell<u64>,
    /// The answers, by build-ids.
    known: HashMap<String, Result<(), FetchModuleError>>,
    /// The failure after which no server is asked.
    failure: Option<String>,
}

impl ModuleFetcher {
    pub(super) fn new(servers: Debuginfod) -> Self {
        Self {
            servers,
            left: MAX_MODULES,
            left_bytes: Cell::new(MAX_BYTES),
            known: HashMap::new(),
            failure: None,
        }
    }

    /// Fetches the debug file of `module` into the cache. `say` gets the progress; the fetch ends when `is_wanted` says so.
    pub(super) fn fetch(
        &mut self,
        module: &ModuleId,
        say: &dyn Fn(String),
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), FetchModuleError> {
        if let Some(known) = self.known.get(&module.build_id) {
            return known.clone();
        }
        if let Some(detail) = self.failure.clone() {
            return Err(FetchModuleError::FailedBefore { detail });
        }
        if !module.has_build_id() {
            return Err(self.not_found());
        }
        if self.left == 0 || self.left_bytes.get() == 0 {
            return Err(FetchModuleError::Limit);
        }
        self.left -= 1;
        let request = FetchRequest {
            build_id: &module.build_id,
            limits: MODULE_LIMITS,
            left_bytes: &self.left_bytes,
            say,
            is_wanted,
        };
        // Before the download, which takes its own bytes away.
        let max_bytes = self.left_bytes.get();
        let fetched = self
            .servers
            .fetch(request, |path| check(path, module, max_bytes));
        let fetched = match fetched {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(self.not_found()),
            Err(FetchError::File(detail)) => Err(FetchModuleError::Failed { detail }),
            Err(FetchError::Download(error)) => {
                let is_last = self.servers.is_empty() || error.fault() == Fault::Host;
                let detail = chain(error);
                self.failure = is_last.then(|| detail.clone());
                Err(FetchModuleError::Failed { detail })
            }
        };
        self.known.insert(module.build_id.clone(), fetched.clone());
        fetched
    }

    fn not_found(&self) -> FetchModuleError {
        FetchModuleError::NotFound {
            servers: self.servers.names(),
        }
    }
}

/// Why a fetch failed.
enum FetchError {
    /// The download or the cache.
    Download(FetchFileError),
    /// The contents of the file.
    File(String),
}

impl From<FetchFileError> for FetchError {
    fn from(error: FetchFileError) -> Self {
        Self::Download(error)
    }
}

/// Checks that the fetched file belongs to `module`. Only the file's notes are read: the process that fetches is not
/// confined. The file may have `max_bytes`, and decompressed, too.
fn check(path: &Path, module: &ModuleId, max_bytes: u64) -> Result<(), FetchError> {
    let wrong = |why: String| {
        let ModuleId { name, build_id } = module;
        FetchError::File(format!(
            "the fetched debug file of the module `{name}` with the build-id {build_id} cannot be used: {why}"
        ))
    };
    let build_id = module_build_id(path, max_bytes).map_err(|error| wrong(chain(&error)))?;
    match build_id.map(|it| it.to_string()) {
        Some(theirs) if theirs == module.build_id => Ok(()),
        theirs => Err(wrong(format!(
            "its own build-id is {}",
            theirs.as_deref().unwrap_or("missing")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use debuginfo::DebugInfo;
    use debuginfo::synthetic::Program;

    use super::*;
    use crate::source_lines::debuginfod::tests::Server;

    fn module(number: u32) -> ModuleId {
        ModuleId {
            name: format!("m{number}"),
            build_id: format!("{number:08x}"),
        }
    }

    fn fetch(fetcher: &mut ModuleFetcher, module: &ModuleId) -> Result<(), FetchModuleError> {
        fetcher.fetch(module, &|_| {}, &|| true)
    }

    #[test]
    fn file_of_a_module_is_fetched_once_into_the_cache() {
        let program = Program::of_sources(&[("m.c", "int f(void)\n{\n\treturn 1;\n}\n")], &["-r"]);
        let info = DebugInfo::open_module(&program.path(), &[]).expect("a module");
        let module = ModuleId {
            name: "m".to_owned(),
            build_id: info.build_id().expect("a build-id").to_string(),
        };
        let contents = fs::read(program.path()).expect("read");
        let path = format!("/buildid/{}/debuginfo", module.build_id);
        let server = Server::with_file(&path, &contents);
        let cache = tempfile::tempdir().expect("tempdir");
        let servers = Debuginfod::at(&[&server.address], cache.path());
        let mut fetcher = ModuleFetcher::new(servers.clone());
        for _ in 0..2 {
            assert_eq!(fetch(&mut fetcher, &module), Ok(()));
        }
        assert!(servers.cached(&module.build_id).is_some());
        assert_eq!(server.requests().len(), 1);
        assert_eq!(fetcher.left_bytes.get(), MAX_BYTES - contents.len() as u64);
    }

    #[test]
    fn file_of_another_build_is_not_kept_and_the_error_has_both_build_ids() {
        let program = Program::of_sources(&[("m.c", "int f(void)\n{\n\treturn 1;\n}\n")], &["-r"]);
        let info = DebugInfo::open_module(&program.path(), &[]).expect("a module");
        let theirs = info.build_id().expect("a build-id").to_string();
        let contents = fs::read(program.path()).expect("read");
        let server = Server::with_file("/buildid/00000007/debuginfo", &contents);
        let cache = tempfile::tempdir().expect("tempdir");
        let mut fetcher = ModuleFetcher::new(Debuginfod::at(&[&server.address], cache.path()));
        let error = fetch(&mut fetcher, &module(7)).expect_err("another build");
        let text = error.to_string();
        assert!(
            text.contains(&theirs) && text.contains("00000007"),
            "{text}"
        );
        assert_eq!(fs::read_dir(cache.path()).expect("the cache").count(), 0);
        // A file that is not kept counts, too.
        assert_eq!(fetcher.left_bytes.get(), MAX_BYTES - contents.len() as u64);
    }

    #[test]
    fn wrong_builds_of_several_servers_share_the_limit_of_bytes() {
        let servers =
            [(); 3].map(|()| Server::with_file("/buildid/00000007/debuginfo", &[7; 1000]));
        let cache = tempfile::tempdir().expect("tempdir");
        let addresses = servers.each_ref().map(|server| server.address.as_str());
        let mut fetcher = ModuleFetcher::new(Debuginfod::at(&addresses, cache.path()));
        fetcher.left_bytes = Cell::new(1500);
        let error = fetch(&mut fetcher, &module(7)).expect_err("not an ELF file");
        assert!(error.to_string().contains("500 bytes"), "{error}");
        assert_eq!(fetcher.left_bytes.get(), 0);
        assert!(servers[2].requests().is_empty());
        assert_eq!(
            fetch(&mut fetcher, &module(8)),
            Err(FetchModuleError::Limit)
        );
    }

    #[test]
    fn file_above_the_limit_of_bytes_does_not_end_the_server() {
        let server = Server::with_file("/buildid/00000007/debuginfo", &[7; 1000]);
        let cache = tempfile::tempdir().expect("tempdir");
        let mut fetcher = ModuleFetcher::new(Debuginfod::at(&[&server.address], cache.path()));
        fetcher.left_bytes = Cell::new(100);
        let error = fetch(&mut fetcher, &module(7)).expect_err("too large");
        assert!(error.to_string().contains("more than 100 bytes"), "{error}");
        fetcher.left_bytes = Cell::new(100);
        let error = fetch(&mut fetcher, &module(8)).expect_err("no file");
        assert!(
            matches!(error, FetchModuleError::NotFound { .. }),
            "{error}"
        );
        assert_eq!(server.requests().len(), 2);
    }

    #[test]
    fn failed_server_is_not_asked_again_and_a_later_server_is() {
        let server = Server::with_file("/none", b"");
        let cache = tempfile::tempdir().expect("tempdir");
        let servers = ["http://127.0.0.1:1", &server.address];
        let mut fetcher = ModuleFetcher::new(Debuginfod::at(&servers, cache.path()));
        let first = fetch(&mut fetcher, &module(1)).expect_err("no file");
        assert!(matches!(first, FetchModuleError::Failed { .. }), "{first}");
        let second = fetch(&mut fetcher, &module(2)).expect_err("no file");
        let servers = server.address.clone();
        assert_eq!(second, FetchModuleError::NotFound { servers });
        assert_eq!(server.requests().len(), 2);
    }

    #[test]
    fn builds_that_a_hostile_guest_names_have_a_limit_and_are_asked_for_once() {
        let server = Server::with_file("/none", b"");
        let cache = tempfile::tempdir().expect("tempdir");
        let mut fetcher = ModuleFetcher::new(Debuginfod::at(&[&server.address], cache.path()));
        fetcher.left = 3;
        for number in [1, 2, 3, 1] {
            let error = fetch(&mut fetcher, &module(number)).expect_err("no file");
            assert!(error.to_string().contains(&server.address), "{error}");
        }
        assert_eq!(
            fetch(&mut fetcher, &module(4)),
            Err(FetchModuleError::Limit)
        );
        for build_id in ["", "../../etc/passwd", "zz", &"0".repeat(129)] {
            let module = ModuleId {
                name: "m".to_owned(),
                build_id: build_id.to_owned(),
            };
            let error = fetch(&mut fetcher, &module).expect_err("no build-id");
            assert!(
                matches!(error, FetchModuleError::NotFound { .. }),
                "{error}"
            );
        }
        assert_eq!(server.requests().len(), 3);
    }

    #[test]
    fn server_that_fails_is_not_asked_for_further_modules() {
        let cache = tempfile::tempdir().expect("tempdir");
        let mut fetcher = ModuleFetcher::new(Debuginfod::at(&["http://127.0.0.1:1"], cache.path()));
        let first = fetch(&mut fetcher, &module(1)).expect_err("no server");
        assert!(
            first.to_string().contains("from http://127.0.0.1:1"),
            "{first}"
        );
        let second = fetch(&mut fetcher, &module(2)).expect_err("not asked");
        let FetchModuleError::FailedBefore { detail } = second else {
            panic!("{second}")
        };
        assert_eq!(detail, first.to_string());
    }
}
