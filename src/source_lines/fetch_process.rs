//! The process that fetches debug files of modules for a process that works for a guest.
//!
//! ```text
//!  hyprobe run: guest, no network              hyprobe fetch-debug-files: network, no guest
//!   thread `debug-fetch` ── module, build-id ──▶ servers of DEBUGINFOD_URLS
//!          ▲                                        │
//!          └────────── done, or the error ──────────┤
//!   thread `debug-files` ◀──── the cache ───────────┘
//! ```
//!
//! A process that works for a guest reaches no network. So before it gives up its rights, it starts another process, which gets a name and
//! hexadecimal digits, and nothing else of the guest. The process ends, with its download, when the other end of its standard input is closed.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::debuginfod::Debuginfod;
use super::module_fetch::{FetchModuleError, ModuleFetch, ModuleFetcher};
use super::module_id::ModuleId;

/// The subcommand of the process.
pub(crate) const COMMAND: &str = "fetch-debug-files";
/// The program of the process: the file of this one.
const PROGRAM: &str = "/proc/self/exe";
/// The longest line that either process reads.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// A running process that fetches. The end of all its owners ends the process.
#[derive(Clone, Debug)]
pub(crate) struct FetchProcess(Arc<Mutex<Pipes>>);

#[derive(Debug)]
struct Pipes {
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Not waited for: the process outlives its owner by a moment at the most.
    _child: Child,
}

impl FetchProcess {
    /// Starts the process; `None` if the environment names no servers, or after an error, of which `tell` gets a sentence. The caller must not
    /// have given up its rights.
    pub(crate) fn start(tell: &dyn Fn(String)) -> Option<Self> {
        let servers = Debuginfod::from_env()?;
        match Self::start_for(&servers) {
            Ok(process) => Some(process),
            Err(error) => {
                tell(format!(
                    "no debug files of modules are fetched from {}: the cache, or the process that fetches, cannot be made: {error}",
                    servers.names()
                ));
                None
            }
        }
    }

    fn start_for(servers: &Debuginfod) -> io::Result<Self> {
        servers.make_cache()?;
        let mut command = Command::new(PROGRAM);
        command
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A ctrl-C is for hyprobe, which ends this process.
            .process_group(0);
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self(Arc::new(Mutex::new(Pipes {
            requests,
            answers: BufReader::new(answers),
            _child: child,
        }))))
    }

    /// Fetches by this process.
    pub(crate) fn fetch(&self) -> ModuleFetch {
        let process = self.clone();
        ModuleFetch::new(move |module| {
            // After a panic, the pipes may hold half of an answer.
            let pipes = process.0.lock();
            let asked = match pipes {
                Ok(mut pipes) => pipes.ask(module),
                Err(_) => Err(io::Error::other("a thread has panicked")),
            };
            asked.unwrap_or_else(|error| {
                Err(FetchModuleError::NoProcess {
                    detail: error.to_string(),
                })
            })
        })
    }
}

impl Pipes {
    fn ask(&mut self, module: &ModuleId) -> io::Result<Result<(), FetchModuleError>> {
        write_line(&mut self.requests, module)?;
        read_line(&mut self.answers)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Fetches the modules that standard input names, a line each, and answers on standard output, until the end of standard input.
pub(crate) fn serve() -> io::Result<()> {
    let Some(servers) = Debuginfod::from_env() else {
        return Ok(());
    };
    let mut fetcher = ModuleFetcher::new(servers);
    let is_wanted = Arc::new(AtomicBool::new(true));
    let wanted = Arc::clone(&is_wanted);
    let (sender, requests) = channel();
    let reader = std::thread::Builder::new().name("requests".to_owned());
    reader.spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(module)) = read_line::<ModuleId>(&mut input) {
            if sender.send(module).is_err() {
                break;
            }
        }
        wanted.store(false, Ordering::Relaxed);
    })?;
    let mut output = io::stdout().lock();
    for module in requests {
        let fetched = fetcher.fetch(&module, &|_| {}, &|| is_wanted.load(Ordering::Relaxed));
        match write_line(&mut output, &fetched) {
            // The other process has ended.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(())
}

fn write_line(to: &mut impl io::Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The value of the next line; `None` at the end.
fn read_line<T: DeserializeOwned>(from: &mut impl io::BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    match line.is_empty() {
        true => Ok(None),
        false => Ok(Some(serde_json::from_slice(&line)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_requests_and_answers() {
        let module = ModuleId {
            name: "a\n\"b".to_owned(),
            build_id: "00ab".to_owned(),
        };
        let failed: Result<(), _> = Err(FetchModuleError::Failed {
            detail: "two\nlines".to_owned(),
        });
        let mut pipe = Vec::new();
        write_line(&mut pipe, &module).expect("written");
        write_line(&mut pipe, &failed).expect("written");
        write_line(&mut pipe, &Ok::<(), FetchModuleError>(())).expect("written");
        let mut from = &pipe[..];
        assert_eq!(read_line(&mut from).expect("read"), Some(module));
        assert_eq!(read_line(&mut from).expect("read"), Some(failed));
        let done = read_line::<Result<(), FetchModuleError>>(&mut from);
        assert_eq!(done.expect("read"), Some(Ok(())));
        assert!(matches!(read_line::<ModuleId>(&mut from), Ok(None)));
    }

    #[test]
    fn endless_line_is_an_error() {
        let mut from = io::BufReader::new(io::repeat(b' '));
        assert!(read_line::<ModuleId>(&mut from).is_err());
    }
}
