//! Faults that are injected: a function that returns before it runs.

use super::Engine;
use crate::handler::HitContext;
use crate::inject::Injector;
use crate::registry::Probe;

impl Engine {
    /// Counts the call at `hit`, whose function is about to run. Whether the vCPU goes on behind it instead.
    pub(super) fn inject(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        injector: &Injector,
    ) -> bool {
        let injection = &injector.injection;
        if let Some(comm) = &injection.comm
            // A task whose name cannot be read is not the one.
            && self.task_name(hit.vcpu).as_deref() != Some(comm.as_bytes())
        {
            return false;
        }
        let Some(call) = injector.count() else {
            return false;
        };
        let value = injection.value.cast_signed();
        match hit.return_now(injection.value) {
            Ok(()) => {
                self.note(Some(probe), format!("call {call} returns {value} at once"));
                true
            }
            Err(error) => {
                let text = format!("call {call} runs, and does not return {value}: {error}");
                self.note(Some(probe), text);
                false
            }
        }
    }
}
