//! When a loop of calls began and ended, by the clocks outside.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use probes::{Action, Handler, HitContext, NewProbe, PreOutcome};

use super::nanos;
use crate::contract::new_probe;

/// A loop begins or ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// RDI there.
    pub(super) first_argument: u64,
    pub(super) at: Instant,
    /// Of the vCPU's thread: what else the host does is not in it.
    cpu_time: Duration,
}

/// The time that the calling thread has had, in the guest, in KVM and in the VMM.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is negative: it counts from the thread's beginning.
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// The marks, in the order in which they were hit.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Arc<Mutex<Vec<Mark>>>);

impl Clock {
    /// The probe at `mark`, which is called before and after each loop.
    pub(super) fn probe(&self, mark: &str) -> NewProbe {
        NewProbe {
            action: Action::Handle(Arc::new(self.clone())),
            ..new_probe(mark)
        }
    }

    pub(super) fn marks(&self) -> Vec<Mark> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Handler for Clock {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.push(Mark {
            first_argument: hit.regs().rdi,
            at: Instant::now(),
            cpu_time: cpu_time(),
        });
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

/// The processor's time that each loop took between two of the marks, without the first `skip` ones.
pub(super) fn spans(marks: &[Mark], skip: usize) -> Vec<u64> {
    let loops = marks.chunks_exact(2).skip(skip);
    let spans = loops.map(|pair| pair[1].cpu_time.saturating_sub(pair[0].cpu_time));
    spans.map(nanos).collect()
}
