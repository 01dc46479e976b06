//! When a loop of calls began and ended, by the clocks outside.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use manifest::ProbeConfig;
use probes::{Engine, EngineAction, Handler, HitContext, PreOutcome};

use super::nanos;
use crate::contract::new_probe;

/// A loop begins or ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// RDI at the mark.
    pub(super) first_argument: u64,
    /// By the clock.
    pub(super) at: Instant,
    /// The CPU time of the vCPU's thread, without the other work of the host.
    cpu_time: Duration,
    /// The number of records taken out at the mark, and the time for taking them out.
    pub(super) taken_out: (usize, Duration),
}

/// The CPU time of the calling thread, in the guest, in KVM and in the VMM.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is negative: the clock counts from the thread's beginning.
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// The marks, in the order in which they were hit.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    marks: Arc<Mutex<Vec<Mark>>>,
    engine: Arc<OnceLock<Arc<Engine>>>,
}

impl Clock {
    /// The probe at `mark`, which is called before and after each loop.
    pub(super) fn probe(&self, mark: &str) -> ProbeConfig<EngineAction> {
        ProbeConfig {
            action: EngineAction::Handle(Arc::new(self.clone())),
            ..new_probe(mark)
        }
    }

    pub(super) fn marks(&self) -> Vec<Mark> {
        self.marks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// From now on, the mark behind a loop takes out the loop's records. By the clock, the time for taking them out is part of the loop.
    pub(super) fn takes_out(&self, engine: &Arc<Engine>) {
        self.engine.get_or_init(|| Arc::clone(engine));
    }
}

impl Handler for Clock {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let before = cpu_time();
        let engine = self.engine.get();
        let taken = engine.map_or(0, |engine| engine.take_out_records());
        // The CPU time for taking out records belongs to no loop: neither to the loop before the mark nor to the loop behind.
        let ends = marks.len() % 2 == 1 || engine.is_none();
        let after = cpu_time();
        marks.push(Mark {
            first_argument: hit.regs().rdi,
            at: Instant::now(),
            cpu_time: if ends { before } else { after },
            taken_out: (taken, after.saturating_sub(before)),
        });
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

/// The CPU time of each loop between two marks, without the first `skip` loops.
pub(super) fn spans(marks: &[Mark], skip: usize) -> Vec<u64> {
    let loops = marks.chunks_exact(2).skip(skip);
    let spans = loops.map(|pair| pair[1].cpu_time.saturating_sub(pair[0].cpu_time));
    spans.map(nanos).collect()
}
