//! debuginfod: servers that have debug files by build-id, and the cache of what was fetched.
//!
//! As for gdb and elfutils, `DEBUGINFOD_URLS` names the servers; without the variable, neither servers nor cache are used. Only a process that
//! works for no guest yet fetches: later, it may reach neither the network nor new files.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_images::{DownloadError, DownloadLimits, Downloaded, download};
use thiserror::Error;

use super::identity::DEBUG_ROOT;

/// The variables of elfutils.
const SERVERS: &str = "DEBUGINFOD_URLS";
const CACHE: &str = "DEBUGINFOD_CACHE_PATH";
/// The folder in the user's cache, and the name of a debug file.
const CACHE_FOLDER: &str = "debuginfod_client";
const FILE: &str = "debuginfo";
/// The most servers that are asked.
const MAX_SERVERS: usize = 16;
/// A kernel with debug information has less than 1 GiB.
const LIMITS: DownloadLimits = DownloadLimits {
    bytes: 4 << 30,
    time: Duration::from_secs(30 * 60),
    // As elfutils.
    silence: Duration::from_secs(90),
};
const MIB: u64 = 1 << 20;

/// Why a debug file could not be fetched.
#[derive(Debug, Error)]
pub(crate) enum FetchFileError {
    /// The server, or the network.
    #[error("cannot fetch the debug file with the build-id {build_id} from {server}")]
    Download {
        /// The build-id.
        build_id: String,
        /// The server.
        server: String,
        /// The cause.
        source: Box<DownloadError>,
    },
    /// The cache.
    #[error("cannot keep a fetched debug file in {folder}")]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The folders with the debug files of this host: that of packages, and the cache.
pub(crate) fn debug_folders() -> Vec<PathBuf> {
    let cache = Debuginfod::from_env().map(|servers| servers.cache);
    [DEBUG_ROOT.into()].into_iter().chain(cache).collect()
}

/// The servers, and the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Debuginfod {
    servers: Vec<String>,
    cache: PathBuf,
}

impl Debuginfod {
    /// The servers and the cache that the environment names; `None` without servers.
    pub(crate) fn from_env() -> Option<Self> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let path = |name| {
            variable(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let servers = variable(SERVERS)?.into_string().ok()?;
        let servers: Vec<String> = servers
            .split_whitespace()
            // Other words are policies of elfutils.
            .filter(|word| word.contains("://"))
            .map(|server| server.trim_end_matches('/').to_owned())
            .take(MAX_SERVERS)
            .collect();
        let cache = || {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
            Some(caches?.join(CACHE_FOLDER))
        };
        let cache = path(CACHE).or_else(cache)?;
        (!servers.is_empty()).then_some(Self { servers, cache })
    }

    /// These servers, and this cache.
    #[cfg(test)]
    pub(super) fn at(servers: &[&str], cache: &Path) -> Self {
        Self {
            servers: servers.iter().map(|server| (*server).to_owned()).collect(),
            cache: cache.to_owned(),
        }
    }

    /// The debug file with this build-id, if the cache has it.
    pub(super) fn cached(&self, build_id: &str) -> Option<PathBuf> {
        let place = self.place(build_id)?;
        // An empty file is the mark of elfutils that no server had the file lately.
        let is_file = fs::metadata(&place).is_ok_and(|found| found.len() > 0);
        is_file.then_some(place)
    }

    /// The place of the debug file with this build-id in the cache; `None` if it is no build-id.
    fn place(&self, build_id: &str) -> Option<PathBuf> {
        let is_id = !build_id.is_empty() && build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| self.cache.join(build_id).join(FILE))
    }

    /// Fetches the debug file with this build-id from the first server that has it; `None` if none has. `open` checks the file, which comes
    /// into the cache only if the check succeeds. `say` gets the progress.
    pub(super) fn fetch<T, E: From<FetchFileError>>(
        &self,
        build_id: &str,
        open: impl Fn(&Path) -> Result<T, E>,
        say: &dyn Fn(String),
    ) -> Result<Option<T>, E> {
        let Some(to) = self.place(build_id) else {
            return Ok(None);
        };
        let folder = self.cache.join(build_id);
        let failed = |source| FetchFileError::Cache {
            folder: folder.clone(),
            source,
        };
        let mut maker = DirBuilder::new();
        let made = maker.recursive(true).mode(0o700).create(&folder);
        made.map_err(failed)?;
        let mut last = None;
        for server in &self.servers {
            match self.download(server, build_id, &folder, say) {
                Ok(downloaded) => match open(downloaded.path()) {
                    Ok(opened) => {
                        downloaded.keep(&to).map_err(failed)?;
                        return Ok(Some(opened));
                    }
                    Err(error) => last = Some(error),
                },
                Err(DownloadError::NotFound) => (),
                Err(source) => {
                    let (build_id, server) = (build_id.to_owned(), server.clone());
                    let error = FetchFileError::Download {
                        build_id,
                        server,
                        source: Box::new(source),
                    };
                    last = Some(error.into());
                }
            }
        }
        // A folder without a file would be of no use.
        let _ = fs::remove_dir(&folder);
        last.map_or(Ok(None), Err)
    }

    fn download(
        &self,
        server: &str,
        build_id: &str,
        folder: &Path,
        say: &dyn Fn(String),
    ) -> Result<Downloaded, DownloadError> {
        say(format!("asking {server} for the debug information"));
        let uri = format!("{server}/buildid/{build_id}/{FILE}");
        let report = |bytes: u64| {
            let mib = bytes / MIB;
            say(format!(
                "fetching the debug information from {server}, {mib} MiB so far"
            ));
        };
        download(&uri, folder, LIMITS, &report)
    }
}

#[cfg(test)]
pub(super) mod tests;
