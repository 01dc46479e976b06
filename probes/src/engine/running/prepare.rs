//! Facts about the kernel that the hits of a probe need.

use crate::engine::running::Running;
use crate::registry::Probe;

impl Running {
    /// Looks up the kernel's per-CPU variables for programs, and what stacks need of the kernel's file, before the guest has to wait for the
    /// look-up. The results are for later: errors are reported at hits.
    pub(crate) fn prepare(&self, probe: &Probe) {
        if probe.has_stack {
            let _ = self.kernel.unwind_rules();
            let _ = self.kernel.modules();
            self.kernel.trampolines();
            let _ = self.kernel.types();
        }
        let conditions = probe.filter.iter().flat_map(|it| it.filter.conditions());
        let mut compared = Vec::new();
        for condition in conditions {
            match condition.operand() {
                Some(operand) => compared.push(operand),
                None => {
                    let _ = self.kernel.tasks();
                }
            }
        }
        let added = probe.purpose.aggregated().map(|it| it.aggregate.of());
        for operand in compared.into_iter().chain(added) {
            if operand.register().is_none() {
                self.kernel.processors();
            }
            if operand.is_of_task() {
                let _ = self.kernel.tasks();
            }
        }
    }
}
