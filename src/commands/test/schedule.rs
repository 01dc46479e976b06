//! Decides which cases run at once.
//!
//! A case takes as many processors as the guest has, and the guest's memory plus the memory of hyprobe or QEMU. The first waiting case
//! that fits begins. A case alone may take more than the host has.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc::{self, Sender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use files::Folder;

use super::attempt::{Attempt, Outcome, attempt};
use super::case::Case;
use super::error::TestError;
use crate::exit::Exit;
use crate::panics::Since;
use crate::run::place::Place;
use crate::stop::StopSignal;

/// The memory of a run on this host beside the guest's memory: the guest's kernel with the symbols, several times.
const HERE_BYTES: u64 = 256 << 20;
/// The outer Linux, QEMU, and the translated code.
const NESTED_BYTES: u64 = 1 << 30;
/// The share of the host's available memory that cases may take, in percent.
const MEMORY_SHARE: u64 = 80;
/// The period of the check for a stop request of the user.
const LOOK: Duration = Duration::from_millis(100);

/// The rules of the scheduling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy<'a> {
    /// The maximum number of cases at once.
    pub(super) at_once: Option<NonZeroUsize>,
    /// The number of further boots of a failing case.
    pub(super) retries: u32,
    /// The folder of the artifacts, for dumps of guests that crash.
    pub(super) artifacts: &'a Folder,
}

/// A case with the place of the run.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) case: Case,
    pub(super) place: Place,
}

impl Job {
    fn cost(&self) -> Cost {
        let config = &self.case.plan.config;
        let beside = match self.place {
            Place::Here(_) => HERE_BYTES,
            Place::Nested(_) => NESTED_BYTES,
        };
        Cost {
            cpus: usize::from(config.cpus),
            bytes: config.memory_bytes.saturating_add(beside),
        }
    }
}

/// The messages of the workers.
#[derive(Debug)]
pub(super) enum News {
    /// A case begins.
    Begun(String),
    /// The case is over.
    Finished(Box<Finished>),
}

/// A case with all attempts; the last attempt counts.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) number: usize,
    pub(super) case: Case,
    pub(super) attempts: Vec<Attempt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    cpus: usize,
    bytes: u64,
}

/// The waiting and the running cases.
#[derive(Debug)]
struct Board {
    waiting: Vec<(Cost, Job)>,
    free: Cost,
    running: usize,
    /// The running attempts, by the number of the case.
    stops: BTreeMap<usize, StopSignal>,
}

#[derive(Debug)]
struct Shared<'a> {
    board: Mutex<Board>,
    changed: Condvar,
    stop: &'a StopSignal,
    policy: Policy<'a>,
}

/// Runs all cases; calls `print_news` on the calling thread. Ends early if `stop` is requested.
pub(super) fn run(
    jobs: Vec<Job>,
    policy: Policy<'_>,
    stop: &StopSignal,
    mut print_news: impl FnMut(News) -> io::Result<()>,
) -> Result<(), TestError> {
    let host = thread::available_parallelism().map_or(1, usize::from);
    let workers = policy.at_once.map_or(host, usize::from).min(jobs.len());
    let shared = Shared {
        board: Mutex::new(Board {
            waiting: jobs.into_iter().map(|job| (job.cost(), job)).collect(),
            free: Cost {
                cpus: host,
                bytes: available_bytes(),
            },
            running: 0,
            stops: BTreeMap::new(),
        }),
        changed: Condvar::new(),
        stop,
        policy,
    };
    let (news, received) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..workers {
            let (shared, news) = (&shared, news.clone());
            let work = move || work(shared, &news);
            thread::Builder::new()
                .name(format!("test-{number}"))
                .spawn_scoped(scope, work)
                .map_err(TestError::Thread)?;
        }
        drop(news);
        let _ends = EndsAll(&shared);
        loop {
            match received.recv_timeout(LOOK) {
                Ok(news) => print_news(news).map_err(|source| {
                    shared.end_all();
                    TestError::Write {
                        path: "standard output".into(),
                        source,
                    }
                })?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if stop.asked().is_some() {
                        shared.end_all();
                    }
                }
            }
        }
    })
}

/// A worker: boots case after case.
fn work(shared: &Shared<'_>, news: &Sender<News>) {
    while let Some((cost, Job { case, place })) = shared.next() {
        let running = Running {
            shared,
            number: case.number,
            cost,
        };
        // If the results cannot be written, the receiver is gone.
        let _ = news.send(News::Begun(case.name.clone()));
        let (mut attempts, panics) = (Vec::new(), Since::now());
        for _ in 0..=shared.policy.retries {
            let stop = StopSignal::default();
            shared.begin(case.number, &stop);
            let tried = attempt(&case, &place, &stop, shared.policy.artifacts);
            let again = match &tried.outcome {
                Outcome::Passed => false,
                Outcome::Failed(_) => true,
                Outcome::Error { exit, .. } => *exit != Exit::Usage,
            };
            attempts.push(tried);
            // A second boot would hide the panic.
            let has_panicked = panics.first().is_some();
            if !again || has_panicked || shared.stop.asked().is_some() {
                break;
            }
        }
        drop(running);
        let _ = news.send(News::Finished(Box::new(Finished {
            number: case.number,
            case,
            attempts,
        })));
    }
}

/// A running case. The drop gives the resources back however the worker ends; otherwise the other workers would wait for ever.
#[derive(Debug)]
struct Running<'a> {
    shared: &'a Shared<'a>,
    number: usize,
    cost: Cost,
}

/// Ends all cases if the thread that receives the workers' messages panics.
struct EndsAll<'a>(&'a Shared<'a>);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end_all();
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shared.end(self.number, self.cost);
    }
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a case that fits. `None` if no case is left.
    fn next(&self) -> Option<(Cost, Job)> {
        let mut board = self.lock();
        loop {
            if board.waiting.is_empty() || self.stop.asked().is_some() {
                return None;
            }
            if let Some(next) = board.take() {
                return Some(next);
            }
            board = self
                .changed
                .wait(board)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Registers an attempt; `stop` ends the attempt.
    fn begin(&self, number: usize, stop: &StopSignal) {
        self.lock().stops.insert(number, stop.clone());
        if let Some(reason) = self.stop.asked() {
            stop.request(reason);
        }
    }

    fn end(&self, number: usize, cost: Cost) {
        let mut board = self.lock();
        board.stops.remove(&number);
        board.give_back(cost);
        drop(board);
        self.changed.notify_all();
    }

    fn end_all(&self) {
        let reason = self.stop.asked();
        let mut board = self.lock();
        board.waiting.clear();
        for stop in board.stops.values() {
            stop.request(reason.unwrap_or(crate::stop::StopReason::OutputClosed));
        }
        drop(board);
        self.changed.notify_all();
    }
}

impl Board {
    fn take(&mut self) -> Option<(Cost, Job)> {
        let fits = |cost: &Cost| cost.cpus <= self.free.cpus && cost.bytes <= self.free.bytes;
        let first = self
            .waiting
            .iter()
            .position(|(cost, _)| self.running == 0 || fits(cost))?;
        let (mut cost, job) = self.waiting.remove(first);
        // The case takes exactly the amount given back later.
        cost.cpus = cost.cpus.min(self.free.cpus);
        cost.bytes = cost.bytes.min(self.free.bytes);
        self.running += 1;
        self.free.cpus -= cost.cpus;
        self.free.bytes -= cost.bytes;
        Some((cost, job))
    }

    fn give_back(&mut self, cost: Cost) {
        self.running -= 1;
        self.free.cpus += cost.cpus;
        self.free.bytes += cost.bytes;
    }
}

/// The memory that the host can give, by the host's own estimate; without an estimate, no limit.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    meminfo(&text).map_or(u64::MAX / 2, |bytes| bytes / 100 * MEMORY_SHARE)
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::run::place::Device;

    fn job(number: usize) -> Job {
        let folder = tempfile::tempdir().expect("tempdir");
        let manifest = folder.path().join("m.toml");
        std::fs::write(&manifest, "[guest]\nkernel = '/k'\n").expect("write");
        let cli = Cli::try_parse_from(["hyprobe", "test", "x"]).expect("parse");
        let Command::Test(args) = cli.command else {
            panic!("{cli:?}")
        };
        let case = Case::read(number, &manifest, &[], &args, &|_| {}).expect("a case");
        Job {
            case,
            place: Place::Here(Device::default()),
        }
    }

    fn board(cpus: usize, bytes: u64, waiting: &[(usize, u64)]) -> Board {
        let waiting = waiting.iter().enumerate();
        Board {
            waiting: waiting
                .map(|(number, &(cpus, bytes))| (Cost { cpus, bytes }, job(number)))
                .collect(),
            free: Cost { cpus, bytes },
            running: 0,
            stops: BTreeMap::new(),
        }
    }

    fn take(board: &mut Board) -> Option<(Cost, usize)> {
        let (cost, job) = board.take()?;
        Some((cost, job.case.number))
    }

    #[test]
    fn the_first_that_fits_begins() {
        let mut board = board(3, 100, &[(2, 10), (2, 10), (1, 80), (1, 10)]);
        let (first, number) = take(&mut board).expect("the first");
        assert_eq!(number, 0);
        assert_eq!(take(&mut board).expect("another").1, 2);
        assert_eq!(take(&mut board), None);
        board.give_back(first);
        assert_eq!(take(&mut board).expect("the second").1, 1);
    }

    #[test]
    fn alone_a_case_may_take_more_than_there_is() {
        let mut board = board(2, 100, &[(8, 1000), (1, 10)]);
        let (cost, number) = take(&mut board).expect("the large one");
        assert_eq!(number, 0);
        assert_eq!(take(&mut board), None);
        board.give_back(cost);
        assert_eq!(
            board.free,
            Cost {
                cpus: 2,
                bytes: 100
            }
        );
        assert_eq!(take(&mut board).expect("the small one").1, 1);
    }

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:  9 kB\nMemAvailable:   20 kB\n";
        assert_eq!(meminfo(text), Some(20 << 10));
        assert_eq!(meminfo("MemAvailable: x kB\n"), None);
    }
}
