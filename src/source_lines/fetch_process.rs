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
//! The workers of `hyprobe test` share one process. A thread `debug-answers` passes the answers on in the order of the requests, so a worker
//! that gives up its wait keeps no other worker waiting.
//!
//! A process that works for a guest reaches no network. So before it gives up its rights, it starts another process, which gets a name and
//! hexadecimal digits, and nothing else of the guest. The process ends, with its download, when the other end of its standard input is closed.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
/// The most requests that wait for the process. The confined process may be in the guest's hands: a full queue ends the fetching.
const MAX_REQUESTS: usize = 256;
/// The period of asking whether an answer is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// The answer to a request.
type Answer = Result<(), FetchModuleError>;

/// The other end of the process' standard output.
#[derive(Debug)]
enum Answers {
    /// Before the first request. A thread of this time would keep rights that the later process gives up.
    NotRead(BufReader<ChildStdout>),
    /// A thread gives each answer to the next of these.
    Read(Sender<Sender<Answer>>),
    /// The thread could not be started.
    Lost,
}

/// A running process that fetches. The end of all its owners ends the process.
#[derive(Clone, Debug)]
pub(crate) struct FetchProcess(Arc<Mutex<Pipes>>);

#[derive(Debug)]
struct Pipes {
    requests: ChildStdin,
    answers: Answers,
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
            answers: Answers::NotRead(BufReader::new(answers)),
            _child: child,
        }))))
    }

    /// Fetches by this process, and waits for the answers.
    pub(crate) fn fetch(&self) -> ModuleFetch {
        let process = self.clone();
        ModuleFetch::new(move |module| {
            let answer = process.ask(module)?;
            answer
                .recv()
                .unwrap_or_else(|_| Err(no_process("no answer")))
        })
    }

    /// Fetches by this process, and waits for all answers together for `limit` at the longest, and only while `is_wanted` says so. A file that comes
    /// later is in the cache.
    pub(crate) fn fetch_within(
        &self,
        limit: Duration,
        is_wanted: impl Fn() -> bool + Send + 'static,
    ) -> ModuleFetch {
        let process = self.clone();
        let mut left = limit;
        ModuleFetch::new(move |module| {
            if left.is_zero() || !is_wanted() {
                return Err(FetchModuleError::Late);
            }
            let answer = process.ask(module)?;
            let began = Instant::now();
            let answered = await_answer(&answer, began + left, &is_wanted);
            left = left.saturating_sub(began.elapsed());
            answered
        })
    }

    /// Sends the request for `module`, and returns the place of the answer.
    fn ask(&self, module: &ModuleId) -> Result<Receiver<Answer>, FetchModuleError> {
        // After a panic, the pipe may hold half of a request.
        let pipes = self.0.lock();
        let mut pipes = pipes.map_err(|_| no_process("a thread has panicked"))?;
        pipes.ask(module).map_err(no_process)
    }
}

/// The answer, if it comes before `deadline` and while `is_wanted` says so.
fn await_answer(
    answer: &Receiver<Answer>,
    deadline: Instant,
    is_wanted: &impl Fn() -> bool,
) -> Answer {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match answer.recv_timeout(left.min(LOOK)) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Disconnected) => return Err(no_process("no answer")),
            Err(RecvTimeoutError::Timeout) if left.is_zero() || !is_wanted() => {
                return Err(FetchModuleError::Late);
            }
            Err(RecvTimeoutError::Timeout) => (),
        }
    }
}

fn no_process(detail: impl ToString) -> FetchModuleError {
    FetchModuleError::NoProcess {
        detail: detail.to_string(),
    }
}

impl Pipes {
    fn ask(&mut self, module: &ModuleId) -> io::Result<Receiver<Answer>> {
        if let Answers::NotRead(_) = self.answers
            && let Answers::NotRead(answers) = std::mem::replace(&mut self.answers, Answers::Lost)
        {
            let (sender, waiting) = channel();
            let thread = std::thread::Builder::new().name("debug-answers".to_owned());
            thread.spawn(move || pass_answers(answers, &waiting))?;
            self.answers = Answers::Read(sender);
        }
        let Answers::Read(waiting) = &self.answers else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        write_line(&mut self.requests, module)?;
        let (sender, answer) = channel();
        let sent = waiting.send(sender);
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(answer)
    }
}

/// Gives each answer to the next of those that are `waiting`, until there is no process, or no owner of the process.
fn pass_answers(mut answers: impl io::BufRead, waiting: &Receiver<Sender<Answer>>) {
    for next in waiting {
        let Ok(Some(answer)) = read_line(&mut answers) else {
            return;
        };
        // The other end may have given up.
        let _ = next.send(answer);
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
    let (sender, requests) = sync_channel(MAX_REQUESTS);
    let reader = std::thread::Builder::new().name("requests".to_owned());
    reader.spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(module)) = read_line::<ModuleId>(&mut input) {
            if sender.try_send(module).is_err() {
                break;
            }
        }
        wanted.store(false, Ordering::Relaxed);
    })?;
    let mut output = io::stdout().lock();
    for module in requests {
        if !is_wanted.load(Ordering::Relaxed) {
            break;
        }
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
    fn answer_comes_to_the_next_request_also_after_one_that_was_given_up() {
        let not_found: Answer = Err(FetchModuleError::Limit);
        let mut pipe = Vec::new();
        write_line(&mut pipe, &not_found).expect("written");
        write_line(&mut pipe, &Answer::Ok(())).expect("written");
        let (sender, waiting) = channel();
        let (given_up, _) = channel();
        let (second, answer) = channel();
        let (third, no_answer) = channel();
        for each in [given_up, second, third] {
            sender.send(each).expect("the other end is here");
        }
        pass_answers(&pipe[..], &waiting);
        drop(waiting);
        let now = Instant::now();
        assert_eq!(await_answer(&answer, now, &|| true), Ok(()));
        let ended = await_answer(&no_answer, now, &|| true).expect_err("the process has ended");
        assert!(
            matches!(ended, FetchModuleError::NoProcess { .. }),
            "{ended}"
        );
    }

    #[test]
    fn wait_for_an_answer_ends_at_its_limit_and_when_the_answer_is_not_wanted() {
        let (_sender, answer) = channel();
        let late = Err(FetchModuleError::Late);
        assert_eq!(await_answer(&answer, Instant::now(), &|| true), late);
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(await_answer(&answer, far, &|| false), late);
    }

    #[test]
    fn endless_line_is_an_error() {
        let mut from = io::BufReader::new(io::repeat(b' '));
        assert!(read_line::<ModuleId>(&mut from).is_err());
    }
}
