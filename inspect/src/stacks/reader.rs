//! The stacks of one moment.
//!
//! Unwinding needs a guest that is paused, since a running vCPU changes its stack. Names do not: the guest waits for the addresses alone.

use std::fmt;

use introspect::PagingState;
use introspect::orc::{KernelStack, OrcTable, Start, SwitchFrame};

use super::kernel::StackKernel;
use super::named::NamedStack;
use super::named_modules::{MAX_MODULES, NamedModules};
use super::running_task::RunningTask;
use super::vcpu::{NotStarted, StoppedVcpu, VcpuMode};
use super::view::{StackLimits, StackView};

/// The limits for all stacks of a moment: those of 4096 tasks take less than a million steps.
const LIMITS: StackLimits = StackLimits {
    modules: MAX_MODULES,
    steps: 1 << 21,
};

/// Unwinds the stacks of a kernel that stands still, and names their functions.
pub struct StackReader<'k> {
    kernel: &'k dyn StackKernel,
    view: StackView<'k>,
    paging: PagingState,
}

impl fmt::Debug for StackReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackReader").finish_non_exhaustive()
    }
}

impl<'k> StackReader<'k> {
    /// A reader of the stacks of `kernel`, which has the unwinding rules `rules` and the page tables `paging`.
    #[must_use]
    pub fn new(
        kernel: &'k dyn StackKernel,
        rules: &'k OrcTable,
        named: &'k NamedModules,
        paging: PagingState,
    ) -> Self {
        Self {
            kernel,
            view: StackView::new(kernel, rules, named, paging, LIMITS),
            paging,
        }
    }

    /// The task that a vCPU runs; `None` before the kernel's per-CPU areas are there.
    #[must_use]
    pub fn task_of(&self, vcpu: &StoppedVcpu) -> Option<RunningTask> {
        RunningTask::of_stopped(self.kernel, &self.paging, vcpu)
    }

    /// The vCPU's stack in the kernel: in a program, without frames.
    ///
    /// # Errors
    ///
    /// If the guest has not started the vCPU.
    pub fn of_vcpu(&self, vcpu: &StoppedVcpu) -> Result<KernelStack, NotStarted> {
        match vcpu.mode {
            VcpuMode::NotStarted => Err(NotStarted),
            VcpuMode::User => Ok(KernelStack::default()),
            VcpuMode::Kernel => Ok(self.view.unwind(Start::Stopped(vcpu.registers))),
        }
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
