//! The operator: the only thread that pauses the machine, and changes probes and knobs.
//!
//! The operator runs requests with a pause one after the other, so the clients' thread never waits for a vCPU. The pause of
//! `POST /machine/pause` lasts between requests, and so does the pause of a dump, up to a deadline. The operator holds the pause, and the
//! changes of other requests use the held pause. A dump is read in steps, each of which is a job of the queue: a dump and changes do not hold
//! each other up, and no change runs beside a step.
//!
//! ```text
//!            Bench::hold, hold_until           a change: uses the pause that is there
//!  running ─────────────▶ paused ─────┐
//!     ▲  a change: pauses,  │  ▲      │
//!     └── and runs on       │  └──────┘
//!     ▲                     │
//!     └─────────────────────┘ Bench::release and no dump, or the machine is ending
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use confine::ThreadKind;
use text::Paused;
use tokio::sync::oneshot;

use crate::api::{Pause, PauseStats, Problem, ProblemKind};
use crate::target::Target;

/// Maximum number of requests in the operator's queue. Further requests get a [`ProblemKind::Busy`].
pub(crate) const WAITING_CHANGES: usize = 64;
/// Interval of the check whether a paused machine is ending. The machine's threads wait for the operator to release the pause.
const LOOK: Duration = Duration::from_millis(20);
/// The pauses that are tried for a dump, and the time between them.
const PAUSES: usize = 20;
const BETWEEN_PAUSES: Duration = Duration::from_millis(1);

/// Whether a pause for a dump is the last that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsLast {
    Yes,
    No,
}

type Job = Box<dyn FnOnce(&mut Bench<'_>) + Send>;

/// Statistics of the pauses so far, and whether the operator holds a pause.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    stats: Mutex<PauseStats>,
    held: AtomicBool,
}

impl Pauses {
    pub(crate) fn stats(&self) -> PauseStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the machine is paused by request.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    fn add(&self, pause: Pause) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.count += 1;
        stats.held_total_ns = stats.held_total_ns.saturating_add(pause.held_ns);
        stats.held_max_ns = stats.held_max_ns.max(pause.held_ns);
        stats.wait_max_ns = stats.wait_max_ns.max(pause.wait_ns);
        stats.last = pause;
    }
}

/// Access of a change to the machine, on the operator's thread.
pub(crate) struct Bench<'t> {
    target: &'t dyn Target,
    pauses: &'t Pauses,
    held: Option<Box<dyn Paused + 't>>,
    /// A client has paused the machine.
    is_wanted: bool,
    /// The dumps under way, each with a deadline.
    dumps: Vec<(Weak<DumpPause>, Instant)>,
}

/// The pause of a dump. The pause ends with the last handle, or at the deadline.
#[derive(Debug, Default)]
pub(crate) struct DumpPause {
    is_over: AtomicBool,
}

impl DumpPause {
    /// Whether the deadline has passed: the guest runs. Called in a job of the queue, the answer is valid to the end of the job.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl<'t> Bench<'t> {
    /// The target, for work without a pause.
    pub(crate) fn target(&self) -> &'t dyn Target {
        self.target
    }

    /// Runs `change` while no vCPU runs. Returns the pause, too: zeros if the operator held a pause already.
    pub(crate) fn paused<T>(
        &mut self,
        change: impl FnOnce(&'t dyn Target, &dyn Paused) -> T,
    ) -> (T, Pause) {
        if let Some(held) = &self.held {
            return (change(self.target, held.as_ref()), Pause::default());
        }
        let asked = Instant::now();
        let paused = self.target.pause();
        let stood = Instant::now();
        let done = change(self.target, paused.as_ref());
        drop(paused);
        let pause = Pause {
            wait_ns: nanoseconds(stood - asked),
            held_ns: nanoseconds(stood.elapsed()),
        };
        self.pauses.add(pause);
        (done, pause)
    }

    /// Pauses the machine until [`release`](Self::release).
    pub(crate) fn hold(&mut self) {
        self.is_wanted = true;
        self.keep_held();
    }

    /// Ends the pause of [`hold`](Self::hold): the machine runs on, unless a dump is under way.
    pub(crate) fn release(&mut self) {
        self.is_wanted = false;
        self.tend();
    }

    /// Pauses the machine for a dump, at most until `deadline`. The change `prepare` runs first, with no vCPU in the guest. `None` asks for
    /// another pause, a moment later: the pause of a client is not ended for it.
    pub(crate) fn hold_until<T>(
        &mut self,
        deadline: Instant,
        mut prepare: impl FnMut(&'t dyn Target, &dyn Paused, IsLast) -> Option<T>,
    ) -> Option<(T, Arc<DumpPause>)> {
        for attempt in 1..=PAUSES {
            let is_new = self.held.is_none();
            let last = match attempt == PAUSES || !is_new {
                true => IsLast::Yes,
                false => IsLast::No,
            };
            self.keep_held();
            let held = self.held.as_ref()?;
            if let Some(prepared) = prepare(self.target, held.as_ref(), last) {
                let pause = Arc::<DumpPause>::default();
                self.dumps.push((Arc::downgrade(&pause), deadline));
                return Some((prepared, pause));
            }
            self.tend();
            if last == IsLast::Yes {
                return None;
            }
            std::thread::sleep(BETWEEN_PAUSES);
        }
        None
    }

    /// The number of dumps under way.
    pub(crate) fn dumps(&mut self) -> usize {
        self.tend();
        self.dumps.len()
    }

    fn keep_held(&mut self) {
        if self.held.is_none() {
            self.held = Some(self.target.pause());
            self.pauses.held.store(true, Ordering::Release);
        }
    }

    /// Forgets dumps that are complete or late, and lets the machine run on if nothing needs the pause.
    fn tend(&mut self) {
        let now = Instant::now();
        self.dumps
            .retain(|(pause, deadline)| match pause.upgrade() {
                Some(pause) if now >= *deadline => {
                    pause.is_over.store(true, Ordering::Release);
                    false
                }
                Some(_) => true,
                None => false,
            });
        if !self.is_wanted && self.dumps.is_empty() {
            self.release_guest();
        }
    }

    fn release_guest(&mut self) {
        self.held = None;
        self.pauses.held.store(false, Ordering::Release);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Handle of the operator's queue. The thread ends when all handles are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    jobs: SyncSender<Job>,
}

impl Operator {
    pub(crate) fn start(
        target: Arc<dyn Target>,
        pauses: Arc<Pauses>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (jobs, waiting) = sync_channel(WAITING_CHANGES);
        let thread = std::thread::Builder::new()
            .name("control-changes".to_owned())
            .spawn(move || {
                confine::enter(ThreadKind::Engine);
                operate(target.as_ref(), &pauses, &waiting);
            })?;
        Ok((Self { jobs }, thread))
    }

    /// Queues `change`, and waits for the result.
    ///
    /// # Errors
    ///
    /// If the queue is full, or the run is over.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Bench<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (done, answer) = oneshot::channel();
        let job: Job = Box::new(move |bench| {
            // An error means that the client has gone away; the result is dropped.
            let _ = done.send(change(bench));
        });
        let ending = || ProblemKind::Ending.with("the guest has ended");
        match self.jobs.try_send(job) {
            Ok(()) => answer.await.map_err(|_| ending()),
            Err(TrySendError::Full(_)) => Err(ProblemKind::Busy.with(format!(
                "{WAITING_CHANGES} changes wait for their turn already"
            ))),
            Err(TrySendError::Disconnected(_)) => Err(ending()),
        }
    }
}

fn operate(target: &dyn Target, pauses: &Pauses, waiting: &Receiver<Job>) {
    let mut bench = Bench {
        target,
        pauses,
        held: None,
        is_wanted: false,
        dumps: Vec::new(),
    };
    loop {
        let job = match bench.held {
            None => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => waiting.recv_timeout(LOOK),
        };
        match target.is_ending() {
            // The machine's threads wait for the operator. Each step of a dump fails from now on.
            true => bench.release_guest(),
            false => bench.tend(),
        }
        match job {
            Ok(job) => job(&mut bench),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
