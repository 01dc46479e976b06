//! The one thread that changes the machine.
//!
//! Requests that pause vCPUs are done one after the other, here, so that no thread that serves clients ever waits for a
//! vCPU. A pause that was asked for by itself lasts between requests; this thread holds it, and the others use it.
//!
//! ```text
//!            Bench::hold                       a change: uses the pause that is there
//!  running ─────────────▶ paused ─────┐
//!     ▲  a change: pauses,  │  ▲      │
//!     └── and runs on       │  └──────┘
//!     ▲                     │
//!     └─────────────────────┘ Bench::release, or the machine is ending
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use confine::ThreadKind;
use probes::Paused;
use tokio::sync::oneshot;

use crate::api::{Pause, PauseStats, Problem, ProblemKind};
use crate::target::Target;

/// Requests that wait for their turn. Beyond that clients are told to come again.
pub(crate) const WAITING_CHANGES: usize = 64;
/// How often it is looked whether a machine that is paused is to end. Its threads wait for that.
const LOOK: Duration = Duration::from_millis(20);

type Job = Box<dyn FnOnce(&mut Bench<'_>) + Send>;

/// The pauses so far, and whether one lasts.
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

/// What a change has at hand, on the operator's thread.
pub(crate) struct Bench<'t> {
    target: &'t dyn Target,
    pauses: &'t Pauses,
    held: Option<Box<dyn Paused + 't>>,
}

impl<'t> Bench<'t> {
    /// What is changed, for what needs no pause.
    pub(crate) fn target(&self) -> &'t dyn Target {
        self.target
    }

    /// Does `change` while no vCPU runs, and tells what that cost.
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
        if self.held.is_none() {
            self.held = Some(self.target.pause());
            self.pauses.held.store(true, Ordering::Release);
        }
    }

    /// Lets it run on.
    pub(crate) fn release(&mut self) {
        self.held = None;
        self.pauses.held.store(false, Ordering::Release);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The way to the thread; the thread ends when all of these are gone.
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

    /// Has `change` done when its turn comes.
    ///
    /// # Errors
    ///
    /// When too many wait already, or the run is over.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Bench<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (done, answer) = oneshot::channel();
        let job: Job = Box::new(move |bench| {
            // A client that has gone away does not hear of it.
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
    };
    loop {
        let job = match bench.held {
            None => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => waiting.recv_timeout(LOOK),
        };
        if target.is_ending() {
            bench.release();
        }
        match job {
            Ok(job) => job(&mut bench),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
