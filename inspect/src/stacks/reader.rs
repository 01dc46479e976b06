//! The stacks of one moment.
//!
//! Unwinding needs a guest that is paused, since a running vCPU changes its stack. Names do not: the guest waits for the addresses alone.

use std::fmt;

use address::Gva;
use introspect::PagingState;
use introspect::orc::{KernelStack, OrcTable, Start, SwitchFrame};

use super::current_task::task_of_stopped;
use super::kernel::StackKernel;
use super::named::{NamedProgram, NamedStack};
use super::named_modules::{MAX_MODULES, NamedModules};
use super::program_reader::{KnownPrograms, ProgramReader};
use super::vcpu::{NotStarted, StoppedVcpu, VcpuMode};
use super::view::{StackLimits, StackView};
use crate::programs::ProgramRegisters;
use crate::tasks::RunningTask;

/// The limits for all stacks of a moment: those of 4096 tasks take less than a million steps.
const LIMITS: StackLimits = StackLimits {
    modules: MAX_MODULES,
    steps: 1 << 21,
};
/// The most bytes that the stacks of programs of a moment read: those of some thousand threads.
const MAX_PROGRAM_BYTES: usize = 256 << 20;

/// Unwinds the stacks of a kernel that stands still, and names their functions.
pub struct StackReader<'k> {
    kernel: &'k dyn StackKernel,
    view: StackView<'k>,
    programs: ProgramReader<'k>,
    paging: PagingState,
}

impl fmt::Debug for StackReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackReader").finish_non_exhaustive()
    }
}

impl<'k> StackReader<'k> {
    /// A reader of the stacks of `kernel`, which has the unwinding rules `rules` and the page tables `paging`. `named` and `programs` are what is known of
    /// modules and programs.
    #[must_use]
    pub fn new(
        kernel: &'k dyn StackKernel,
        rules: &'k OrcTable,
        named: &'k NamedModules,
        programs: &'k KnownPrograms,
        paging: PagingState,
    ) -> Self {
        Self {
            kernel,
            view: StackView::new(kernel, rules, named, paging, LIMITS),
            programs: ProgramReader::with_limit(kernel, programs, paging, MAX_PROGRAM_BYTES),
            paging,
        }
    }

    /// The task that a vCPU runs; `None` before the kernel's per-CPU areas are there.
    #[must_use]
    pub fn task_of(&self, vcpu: &StoppedVcpu) -> Option<RunningTask> {
        self.kernel.task(&self.paging, self.task_at(vcpu)?)
    }

    /// The `task_struct` of the task that a vCPU runs.
    fn task_at(&self, vcpu: &StoppedVcpu) -> Option<Gva> {
        task_of_stopped(self.kernel, &self.paging, vcpu)
    }

    /// The vCPU's stack in the kernel: in a program, without frames.
    ///
    /// # Errors
    ///
    /// If the guest has not started the vCPU.
    pub fn of_vcpu(&self, vcpu: &StoppedVcpu) -> Result<KernelStack, NotStarted> {
        match vcpu.mode {
            VcpuMode::NotStarted => Err(NotStarted),
            VcpuMode::User { .. } => Ok(KernelStack::default()),
            VcpuMode::Kernel => Ok(self.view.unwind(Start::Stopped(vcpu.registers.start()))),
        }
    }

    /// The program that a vCPU runs, or that has called the kernel on it. `stack` is the vCPU's stack in the kernel.
    #[must_use]
    pub fn program_of_vcpu(&self, vcpu: &StoppedVcpu, stack: &KernelStack) -> Option<NamedProgram> {
        match vcpu.mode {
            VcpuMode::NotStarted => None,
            VcpuMode::User { is_long } => {
                let registers = ProgramRegisters::of_vcpu(vcpu.registers.0, is_long);
                Some(self.programs.running(&registers, self.task_at(vcpu)))
            }
            VcpuMode::Kernel => self.program_behind(stack, self.task_at(vcpu)),
        }
    }

    /// The program at the end of a kernel stack, which is that of the task with the `task_struct` at `task`.
    #[must_use]
    pub fn program_behind(&self, stack: &KernelStack, task: Option<Gva>) -> Option<NamedProgram> {
        self.programs.behind(stack, task)
    }

    /// The kernel stack of a task that is on no processor.
    #[must_use]
    pub fn of_switched_out(&self, frame: SwitchFrame) -> KernelStack {
        self.view.unwind(Start::SwitchedOut(frame))
    }

    /// A stack with names. A guest may run.
    #[must_use]
    pub fn named(&self, stack: &KernelStack) -> NamedStack {
        self.view.named(stack)
    }
}
