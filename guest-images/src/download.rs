//! Downloads of single files, by apt's programs for HTTP and HTTPS: through the system's proxies, and by the user of apt's sandbox.

// The program of apt dies with its parent, which it can ask for only between fork and exec.
#![expect(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::{NamedTempFile, TempPath};
use thiserror::Error;

use crate::apt::{DownloadPlace, complaint, lost_sandbox};
use crate::fetch::FetchError;

/// The program of the package apt that downloads a file.
const HELPER: &str = "/usr/lib/apt/apt-helper";
/// The period of looking at the size of the file.
const LOOK: Duration = Duration::from_millis(50);
/// The most bytes of messages that are read.
const MAX_MESSAGES: u64 = 64 << 10;

/// The limits of a download.
#[derive(Clone, Copy, Debug)]
pub struct DownloadLimits {
    /// The largest size of the file in bytes.
    pub bytes: u64,
    /// The longest time of the download.
    pub time: Duration,
    /// The longest time without a new byte.
    pub silence: Duration,
}

/// Why a file could not be downloaded.
#[derive(Debug, Error)]
pub enum DownloadError {
    /// Another scheme, which could name a file of this host.
    #[error("it is not an address of http:// or https://")]
    Scheme,
    /// apt cannot be used.
    #[error(transparent)]
    Apt(#[from] FetchError),
    /// apt-helper is missing.
    #[error("cannot start {HELPER}, of Debian's package apt")]
    NoHelper(#[source] io::Error),
    /// The server does not have the file.
    #[error("the server does not have the file")]
    NotFound,
    /// The certificate of the server, or of its authority.
    #[error(
        "the server's certificate is not trusted ({detail}): if the authority is yours, add its certificate to the system's, or name it in apt's configuration: Acquire::https::CAInfo \"FILE\";"
    )]
    Untrusted {
        /// Error message of apt.
        detail: String,
    },
    /// The server cannot be reached, or gives an error.
    #[error("{detail}")]
    Failed {
        /// Error message of apt.
        detail: String,
    },
    /// The file is too large.
    #[error("the file has more than {max} bytes")]
    TooLarge {
        /// The maximum number of bytes.
        max: u64,
    },
    /// The download takes too long.
    #[error("the download took more than {} s", .0.as_secs())]
    TooLong(Duration),
    /// The server is silent.
    #[error("the server sent no byte for {} s", .0.as_secs())]
    Silent(Duration),
    /// The caller does not want the file any more.
    #[error("the download was stopped")]
    Stopped,
    /// A file of this host.
    #[error("cannot keep the file")]
    Io(#[from] io::Error),
}

/// The caller of a download, which is called again and again.
#[derive(Clone, Copy)]
pub struct DownloadCaller<'c> {
    /// Gets the number of bytes so far.
    pub report: &'c dyn Fn(u64),
    /// Whether the caller still wants the file.
    pub is_wanted: &'c dyn Fn() -> bool,
}

impl std::fmt::Debug for DownloadCaller<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DownloadCaller").finish_non_exhaustive()
    }
}

/// A downloaded file with a temporary name; removed unless it is kept.
#[derive(Debug)]
pub struct Downloaded(TempPath);

impl Downloaded {
    /// The temporary name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Gives the file the name `to`, in the same folder.
    ///
    /// # Errors
    ///
    /// The system's answer.
    pub fn keep(self, to: &Path) -> io::Result<()> {
        self.0.persist(to).map_err(|error| error.error)
    }
}

/// Downloads `uri` to a new file in `folder`.
///
/// # Errors
///
/// See [`DownloadError`].
pub fn download(
    uri: &str,
    folder: &Path,
    limits: DownloadLimits,
    caller: DownloadCaller<'_>,
) -> Result<Downloaded, DownloadError> {
    if !["http://", "https://"]
        .iter()
        .any(|scheme| uri.starts_with(scheme))
    {
        return Err(DownloadError::Scheme);
    }
    let place = DownloadPlace::make().map_err(FetchError::from)?;
    let file = place.path().join("file");
    let mut messages = tempfile::tempfile()?;
    let mut command = Command::new(HELPER);
    command
        .args(["-o", "Acquire::Retries=1"])
        .args(place.options())
        .args(["download-file", uri])
        .arg(&file)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(messages.try_clone()?)
        // The helper starts a process for each scheme.
        .process_group(0);
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the call above.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: after a fork of a process with threads only async-signal-safe functions may be called: `prepare` makes two kinds of system calls,
    // allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().map_err(DownloadError::NoHelper)?;
    let status = Transfer::new(child, file.clone(), limits).run(caller)?;
    let mut told = Vec::new();
    messages.rewind()?;
    messages.take(MAX_MESSAGES).read_to_end(&mut told)?;
    let told = String::from_utf8_lossy(&told);
    if !status.success() {
        return Err(failure(&told));
    }
    match lost_sandbox(&told) {
        Some(notice) if place.has_sandbox() => {
            return Err(DownloadError::Failed {
                detail: format!("apt gave up its sandbox: {notice}"),
            });
        }
        _ => (),
    }
    let mut kept = NamedTempFile::new_in(folder)?;
    let mut from = File::open(&file)?.take(limits.bytes + 1);
    if io::copy(&mut from, &mut kept)? > limits.bytes {
        let max = limits.bytes;
        return Err(DownloadError::TooLarge { max });
    }
    Ok(Downloaded(kept.into_temp_path()))
}

fn failure(told: &str) -> DownloadError {
    let detail = complaint(told);
    // `E: Failed to fetch URI  404  Not Found [IP: …]`
    // apt with GnuTLS and with OpenSSL: `Certificate verification failed`, `certificate verify failed`.
    let is_untrusted = ["certificate verif", "certificate validation"]
        .iter()
        .any(|words| detail.to_lowercase().contains(words));
    match detail.split("  ").any(|part| part.starts_with("404")) {
        true => DownloadError::NotFound,
        false if is_untrusted => DownloadError::Untrusted { detail },
        false => DownloadError::Failed { detail },
    }
}

/// A running download. The drop ends the processes.
struct Transfer {
    child: Child,
    file: PathBuf,
    limits: DownloadLimits,
}

impl Transfer {
    fn new(child: Child, file: PathBuf, limits: DownloadLimits) -> Self {
        Self {
            child,
            file,
            limits,
        }
    }

    /// Waits for the end, within the limits.
    fn run(mut self, caller: DownloadCaller<'_>) -> Result<ExitStatus, DownloadError> {
        let began = Instant::now();
        let (mut size, mut grew) = (0, began);
        loop {
            let ended = self.child.try_wait()?;
            let now = fs::metadata(&self.file).map_or(0, |file| file.len());
            if now != size {
                (size, grew) = (now, Instant::now());
                (caller.report)(size);
            }
            if let Some(status) = ended {
                return Ok(status);
            }
            if !(caller.is_wanted)() {
                return Err(DownloadError::Stopped);
            }
            let limits = self.limits;
            if size > limits.bytes {
                return Err(DownloadError::TooLarge { max: limits.bytes });
            }
            if grew.elapsed() > limits.silence {
                return Err(DownloadError::Silent(limits.silence));
            }
            if began.elapsed() > limits.time {
                return Err(DownloadError::TooLong(limits.time));
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                // The group is the child's own, and the child has not been waited for.
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const LIMITS: DownloadLimits = DownloadLimits {
        bytes: 1 << 20,
        time: Duration::from_secs(60),
        silence: Duration::from_secs(30),
    };

    const WAITING: DownloadCaller<'_> = DownloadCaller {
        report: &|_| {},
        is_wanted: &|| true,
    };

    /// A server that answers each request by `answer`; returns its address.
    fn serve(answer: impl Fn(&mut TcpStream) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                answer(&mut stream);
            }
        });
        format!("http://{address}/buildid/00ab/debuginfo")
    }

    fn send(stream: &mut TcpStream, head: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n");
        // The client may have ended the connection.
        let _ = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body));
    }

    fn try_download(uri: &str, limits: DownloadLimits) -> Result<Vec<u8>, DownloadError> {
        let folder = tempfile::tempdir().expect("tempdir");
        let to = folder.path().join("kept");
        let downloaded = download(uri, folder.path(), limits, WAITING)?;
        downloaded.keep(&to).expect("kept");
        Ok(fs::read(to).expect("read"))
    }

    #[test]
    fn file_of_a_server_is_kept_under_its_name() {
        let uri = serve(|stream| send(stream, "200 OK\r\nContent-Length: 5", b"bytes"));
        assert_eq!(try_download(&uri, LIMITS).expect("downloaded"), b"bytes");
    }

    #[test]
    fn missing_file_other_errors_and_other_schemes_are_distinct_errors() {
        let uri = serve(|stream| send(stream, "404 Not Found\r\nContent-Length: 0", b""));
        let error = try_download(&uri, LIMITS).expect_err("missing");
        assert!(matches!(error, DownloadError::NotFound), "{error}");
        let uri = serve(|stream| send(stream, "403 Forbidden\r\nContent-Length: 0", b""));
        let error = try_download(&uri, LIMITS).expect_err("forbidden");
        assert!(error.to_string().contains("403"), "{error}");
        for uri in ["file:///etc/passwd", "copy:/etc/passwd", "x"] {
            let error = try_download(uri, LIMITS).expect_err("another scheme");
            assert!(matches!(error, DownloadError::Scheme), "{error}");
        }
    }

    #[test]
    fn file_larger_than_the_limit_and_silent_server_end_the_download() {
        let large = vec![7; 1 << 20];
        let length = format!("200 OK\r\nContent-Length: {}", large.len());
        let uri = serve(move |stream| send(stream, &length, &large));
        let small = DownloadLimits {
            bytes: 1000,
            ..LIMITS
        };
        let error = try_download(&uri, small).expect_err("too large");
        assert!(
            matches!(error, DownloadError::TooLarge { max: 1000 }),
            "{error}"
        );
        let uri = serve(|stream| {
            send(stream, "200 OK\r\nContent-Length: 5", b"by");
            std::thread::sleep(Duration::from_secs(60));
        });
        let hasty = DownloadLimits {
            silence: Duration::from_secs(1),
            ..LIMITS
        };
        let began = Instant::now();
        let error = try_download(&uri, hasty).expect_err("silent");
        assert!(matches!(error, DownloadError::Silent(_)), "{error}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn download_that_is_not_wanted_any_more_is_stopped() {
        let uri = serve(|stream| {
            send(stream, "200 OK\r\nContent-Length: 5", b"by");
            std::thread::sleep(Duration::from_secs(60));
        });
        let folder = tempfile::tempdir().expect("tempdir");
        let looks = std::cell::Cell::new(0);
        let caller = DownloadCaller {
            is_wanted: &|| {
                looks.set(looks.get() + 1);
                looks.get() < 3
            },
            ..WAITING
        };
        let error = download(&uri, folder.path(), LIMITS, caller).expect_err("stopped");
        assert!(matches!(error, DownloadError::Stopped), "{error}");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }
}
