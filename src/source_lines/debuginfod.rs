//! debuginfod: servers that have debug files by build-id, and the cache of what was fetched.
//!
//! As for gdb and elfutils, `DEBUGINFOD_URLS` names the servers; without the variable, neither servers nor cache are used. Only a process that
//! works for no guest yet fetches: later, it may reach neither the network nor new files.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_images::{DownloadCaller, DownloadError, DownloadLimits, Downloaded, download};
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
/// As elfutils.
const SILENCE: Duration = Duration::from_secs(90);
/// A kernel with debug information has less than 1 GiB.
pub(super) const KERNEL_LIMITS: DownloadLimits = DownloadLimits {
    bytes: 4 << 30,
    time: Duration::from_secs(30 * 60),
    silence: SILENCE,
};
/// Debian's largest module with debug information has less than 100 MiB.
pub(super) const MODULE_LIMITS: DownloadLimits = DownloadLimits {
    bytes: 256 << 20,
    time: Duration::from_secs(5 * 60),
    silence: SILENCE,
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

impl FetchFileError {
    /// The part that failed.
    pub(super) fn fault(&self) -> Fault {
        let Self::Download { source, .. } = self else {
            return Fault::Host;
        };
        match **source {
            DownloadError::NotFound | DownloadError::TooLarge { .. } => Fault::File,
            DownloadError::Scheme
            | DownloadError::Untrusted { .. }
            | DownloadError::Failed { .. }
            | DownloadError::TooLong(_)
            | DownloadError::Silent(_) => Fault::Server,
            DownloadError::Apt(_)
            | DownloadError::NoHelper(_)
            | DownloadError::Stopped
            | DownloadError::Io(_) => Fault::Host,
        }
    }
}

/// The part that a failed fetch is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// One file: the server may have others.
    File,
    /// The server, or the network to the server.
    Server,
    /// This host, or the caller: another server would not help.
    Host,
}

/// A debug file that a server may have, and the limits of the download.
#[derive(Clone, Copy)]
pub(super) struct FetchRequest<'r> {
    pub(super) build_id: &'r str,
    pub(super) limits: DownloadLimits,
    /// The bytes that further downloads may have. Each download takes its bytes away, also a failed one.
    pub(super) left_bytes: &'r Cell<u64>,
    /// Gets the progress.
    pub(super) say: &'r dyn Fn(String),
    /// Whether the caller still wants the file.
    pub(super) is_wanted: &'r dyn Fn() -> bool,
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

    /// Whether all servers have failed.
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The servers that have not failed, for messages.
    pub(super) fn names(&self) -> String {
        self.servers.join(", ")
    }

    /// Makes the folder of the cache: a process cannot keep the right to read a folder that does not exist.
    pub(super) fn make_cache(&self) -> io::Result<()> {
        make_folder(&self.cache)
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

    /// Fetches the debug file of `request` from the first server that has it; `None` if none has. `open` checks the file, which comes
    /// into the cache only if the check succeeds. A server that fails is not asked again.
    pub(super) fn fetch<T, E: From<FetchFileError>>(
        &mut self,
        request: FetchRequest<'_>,
        open: impl Fn(&Path) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let build_id = request.build_id;
        let Some(to) = self.place(build_id) else {
            return Ok(None);
        };
        let folder = self.cache.join(build_id);
        let failed = |source| FetchFileError::Cache {
            folder: folder.clone(),
            source,
        };
        make_folder(&folder).map_err(failed)?;
        let (mut fetched, mut last, mut failed_servers) = (Ok(None), None, Vec::new());
        for server in &self.servers {
            if request.left_bytes.get() == 0 {
                break;
            }
            match download_from(server, request, &folder) {
                Ok(downloaded) => match open(downloaded.path()) {
                    Ok(opened) => {
                        fetched = downloaded.keep(&to).map(|()| Some(opened)).map_err(failed);
                        break;
                    }
                    Err(error) => last = Some(error),
                },
                Err(DownloadError::NotFound) => (),
                Err(source) => {
                    let error = FetchFileError::Download {
                        build_id: build_id.to_owned(),
                        server: server.clone(),
                        source: Box::new(source),
                    };
                    let fault = error.fault();
                    last = Some(error.into());
                    match fault {
                        Fault::File => (),
                        Fault::Server => failed_servers.push(server.clone()),
                        Fault::Host => break,
                    }
                }
            }
        }
        self.servers
            .retain(|server| !failed_servers.contains(server));
        if let Some(opened) = fetched? {
            return Ok(Some(opened));
        }
        // A folder without a file would be of no use.
        let _ = fs::remove_dir(&folder);
        last.map_or(Ok(None), Err)
    }
}

fn download_from(
    server: &str,
    request: FetchRequest<'_>,
    folder: &Path,
) -> Result<Downloaded, DownloadError> {
    let say = request.say;
    say(format!("asking {server} for the debug information"));
    let uri = format!("{server}/buildid/{}/{FILE}", request.build_id);
    let (left, largest) = (request.left_bytes.get(), Cell::new(0));
    let report = |bytes: u64| {
        largest.set(bytes.max(largest.get()));
        let mib = bytes / MIB;
        say(format!(
            "fetching the debug information from {server}, {mib} MiB so far"
        ));
    };
    let caller = DownloadCaller {
        report: &report,
        is_wanted: request.is_wanted,
    };
    let limits = DownloadLimits {
        bytes: request.limits.bytes.min(left),
        ..request.limits
    };
    let downloaded = download(&uri, folder, limits, caller);
    request.left_bytes.set(left.saturating_sub(largest.get()));
    downloaded
}

/// Makes a folder of the user's cache, and those above.
fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
pub(super) mod tests;
