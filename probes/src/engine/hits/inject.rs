//! Fault injection: a function returns before running.

use crate::engine::hits::Hits;
use crate::handler::HitContext;
use crate::inject::Injector;
use crate::registry::Probe;
use address::Gva;

impl Hits {
    /// Counts the call at `hit`, whose function is about to run. Returns whether the call returns at once, without running.
    pub(crate) fn inject(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        injector: &Injector,
    ) -> bool {
        let injection = &injector.injection;
        if let Some(comm) = &injection.comm {
            // If the task's name is unreadable, the call does not match.
            let ip = Gva(hit.regs.rip);
            let task = hit.state().ok().and_then(|hit| self.tasks.named(hit, ip));
            if task.is_none_or(|task| task.comm != *comm) {
                return false;
            }
        }
        let Some(call) = injector.count() else {
            return false;
        };
        let value = injection.value.cast_signed();
        match hit.return_now(injection.value) {
            Ok(()) => {
                self.reporter
                    .note(Some(probe), format!("call {call} returns {value} at once"));
                true
            }
            Err(error) => {
                let text = format!("call {call} runs, and does not return {value}: {error}");
                self.reporter.note(Some(probe), text);
                false
            }
        }
    }
}
