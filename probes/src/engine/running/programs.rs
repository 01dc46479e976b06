//! Filters and aggregates at a hit.

use detour::register_value;
use introspect::{PerCpu, read_virt};
use manifest::program::{Operand, Values};

use crate::applied::Aggregated;
use crate::engine::hit_arguments::HitArguments;
use crate::engine::running::Running;
use crate::handler::HitContext;
use crate::registry::Probe;

/// The operands of programs, for a vCPU at a hit. Registers are free; each value in guest memory costs a walk of the guest's
/// page tables.
struct Seen<'h, 'e, 'v> {
    running: &'h Running,
    hit: &'h mut HitContext<'v>,
    arguments: &'h mut HitArguments<'e>,
}

impl Values for Seen<'_, '_, '_> {
    fn value(&mut self, operand: Operand) -> u64 {
        if let Operand::Argument(argument) = operand
            && let Some(arguments) = self.arguments.at(self.hit).outside_registers()
        {
            let number = usize::from(argument.number());
            return arguments.get(number).copied().unwrap_or(0);
        }
        if let Some(register) = operand.register() {
            return register_value(&self.hit.regs, register);
        }
        let processors = self.running.kernel.processors();
        match operand {
            Operand::Cpu => match self.read::<4>(processors.number) {
                Some(number) => u32::from_le_bytes(number).into(),
                None => self.hit.vcpu() as u64,
            },
            _ => self.read(processors.task).map_or(0, u64::from_le_bytes),
        }
    }
}

impl Seen<'_, '_, '_> {
    /// Reads a per-CPU variable. `None` if the variable's location is unknown, or the kernel has not booted far enough.
    fn read<const BYTES: usize>(&mut self, variable: Option<PerCpu>) -> Option<[u8; BYTES]> {
        let variable = variable?;
        let state = self.running.kernel_state(self.hit.vcpu).ok()?;
        let slide = self.running.slide().unwrap_or(0);
        let at = variable.at(state.system.segments.gs.base, slide);
        let mut bytes = [0; BYTES];
        read_virt(&self.running.planter, &state.paging, at, &mut bytes).ok()?;
        Some(bytes)
    }
}

impl Running {
    /// Whether the filter of `probe` accepts the execution at `hit`.
    pub(crate) fn accepts_hit(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        arguments: &mut HitArguments<'_>,
    ) -> bool {
        let Some(filtered) = &probe.filter else {
            return true;
        };
        let vcpu = hit.vcpu();
        let accepts_hit = filtered.filter.holds(&mut Seen {
            running: self,
            hit,
            arguments,
        });
        filtered.decided(vcpu, accepts_hit);
        if !accepts_hit {
            probe.counters.count_exit();
        }
        accepts_hit
    }

    /// Adds a value of the vCPU at `hit`.
    pub(crate) fn add_value(
        &self,
        hit: &mut HitContext<'_>,
        arguments: &mut HitArguments<'_>,
        aggregated: &Aggregated,
    ) {
        let mut seen = Seen {
            running: self,
            hit,
            arguments,
        };
        aggregated.add(seen.value(aggregated.aggregate.of()));
    }

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
        let compared = conditions.map(|condition| condition.operand);
        let added = probe.purpose.aggregated().map(|it| it.aggregate.of());
        if compared.chain(added).any(|of| of.register().is_none()) {
            self.kernel.processors();
        }
    }
}
