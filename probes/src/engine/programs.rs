//! Filters and aggregates at a hit.

use std::sync::Arc;

use address::Gva;
use detour::register_value;
use introspect::PerCpu;
use manifest::program::{Filter, NAME_BYTES, Operand, TaskNumber, Values};
use manifest::{Action, ProbeKind};

use crate::ResolveProblem;
use crate::applied::Aggregated;
use crate::engine::engine_action::EngineAction;
use crate::engine::hit_arguments::{HitArguments, OneArgument};
use crate::engine::running::Running;
use crate::engine::tasks::{Position, Tasks};
use crate::handler::HitContext;
use crate::kernel::Kernel;
use crate::registry::{Probe, Purpose};

/// Evaluates filters and aggregates.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) running: Arc<Running>,
    pub(crate) tasks: Arc<Tasks>,
}

/// Checks whether the program of a probe of `kind` can read its operands in `kernel`.
///
/// # Errors
///
/// If the kernel's types do not say where a task has a number, or the value is lost at the return.
pub(crate) fn check_operands(
    kernel: &Kernel,
    kind: ProbeKind,
    filter: Option<&Filter>,
    action: &EngineAction,
) -> Result<(), ResolveProblem> {
    let conditions = filter.iter().flat_map(|filter| filter.conditions());
    let mut operands = Vec::new();
    let has_names = || {
        let layout = kernel.tasks();
        layout.is_some_and(|layout| layout.comm_bytes == NAME_BYTES)
    };
    for condition in conditions {
        match condition.operand() {
            Some(operand) => operands.push(operand),
            None if !has_names() => return Err(ResolveProblem::NoTaskNumber { name: "comm" }),
            None => (),
        }
    }
    if let EngineAction::Configured(Action::Aggregate(aggregate)) = action {
        aggregate.fits(kind)?;
        operands.push(aggregate.of());
    }
    for operand in operands {
        if let Operand::Task(number) = operand {
            let layout = kernel.tasks();
            let is_known = match number {
                TaskNumber::User => layout.is_some_and(|layout| layout.user.is_some()),
                TaskNumber::Process | TaskNumber::Thread => layout.is_some(),
            };
            if !is_known {
                let name = number.name();
                return Err(ResolveProblem::NoTaskNumber { name });
            }
        }
    }
    Ok(())
}

/// The operands of programs, for a vCPU at a hit. Registers are free; the first value in guest memory costs a request to KVM and a walk of the
/// guest's page tables.
struct Seen<'h, 'e, 'v> {
    programs: &'h Programs,
    position: Position,
    hit: &'h mut HitContext<'v>,
    arguments: &'h mut HitArguments<'e>,
}

impl Values for Seen<'_, '_, '_> {
    fn value(&mut self, operand: Operand) -> Option<u64> {
        if let Operand::Argument(argument) = operand {
            let number = usize::from(argument.number());
            match self.arguments.one(self.hit, number) {
                OneArgument::InRegister => (),
                OneArgument::Known(value) => return Some(value),
                OneArgument::Unknown => return None,
            }
        }
        if let Some(register) = operand.register() {
            return Some(register_value(&self.hit.regs, register));
        }
        let processors = self.programs.running.kernel.processors();
        match operand {
            Operand::Cpu => Some(match self.read::<4>(processors.number) {
                Some(number) => u32::from_le_bytes(number).into(),
                None => self.hit.vcpu() as u64,
            }),
            Operand::Task(number) => self.task(number).map(u64::from),
            Operand::CurrentTask | Operand::Register(_) | Operand::Argument(_) => {
                Some(self.read(processors.task).map_or(0, u64::from_le_bytes))
            }
        }
    }

    fn name(&mut self) -> Option<[u8; NAME_BYTES]> {
        let tasks = &self.programs.tasks;
        tasks.name(self.hit.state().ok()?, self.position)
    }
}

impl Seen<'_, '_, '_> {
    /// Reads a per-CPU variable. `None` if the variable's location is unknown, or the kernel has not booted far enough.
    fn read<const BYTES: usize>(&mut self, variable: Option<PerCpu>) -> Option<[u8; BYTES]> {
        let variable = variable?;
        let state = self.hit.state().ok()?;
        let running = &self.programs.running;
        let slide = running.slide().unwrap_or(0);
        let at = variable.at(state.registers.system.segments.gs.base, slide);
        let mut bytes = [0; BYTES];
        // No plant is in a variable of the kernel.
        state.walks.read(&*running.memory, at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// A number of the task that the processor runs; `None` if it cannot be read.
    fn task(&mut self, number: TaskNumber) -> Option<u32> {
        let tasks = &self.programs.tasks;
        tasks.number(self.hit.state().ok()?, self.position, number)
    }
}

impl Programs {
    /// Whether the filter of `probe` accepts the execution at `hit`. A rejected execution has an exit of its own.
    pub(crate) fn accepts(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        arguments: &mut HitArguments<'_>,
    ) -> bool {
        let accepts = self.accepts_within_exit(hit, probe, arguments);
        if !accepts {
            probe.counters.count_exit();
        }
        accepts
    }

    /// Whether the filter of `probe` accepts the execution at `hit`. The caller counts exits.
    pub(crate) fn accepts_within_exit(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        arguments: &mut HitArguments<'_>,
    ) -> bool {
        let Some(filtered) = &probe.filter else {
            return true;
        };
        let vcpu = hit.vcpu();
        let holds = filtered.filter.holds(&mut Seen {
            programs: self,
            position: Position::At(Gva(hit.regs.rip)),
            hit,
            arguments,
        });
        let accepts = holds == Some(true);
        filtered.decided(vcpu, accepts);
        if holds.is_none() {
            if matches!(probe.purpose, Purpose::Return(_)) {
                // The missed calls of a return probe are hits.
                probe.counters.count_recorded();
            }
            probe.counters.miss(arguments.missed());
        }
        accepts
    }

    /// Adds a value of the vCPU at `hit`. Returns whether the value is known.
    pub(crate) fn add_value(
        &self,
        hit: &mut HitContext<'_>,
        position: Position,
        arguments: &mut HitArguments<'_>,
        aggregated: &Aggregated,
    ) -> bool {
        let mut seen = Seen {
            programs: self,
            position,
            hit,
            arguments,
        };
        let value = seen.value(aggregated.aggregate.of());
        if let Some(value) = value {
            aggregated.add(value);
        }
        value.is_some()
    }
}
