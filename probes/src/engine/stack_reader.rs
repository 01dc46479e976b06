//! Stacks of a paused machine.
//!
//! Unwinding needs the pause, since a running vCPU changes its stack. Names do not: the guest waits for the addresses alone.

use std::fmt;

use events::Task;
use introspect::PagingState;
use introspect::orc::{KernelStack, NoOrc, Start, SwitchFrame};
use vmm::VcpuState;

use crate::engine::inventory::Inventory;
use crate::engine::stacks::{MAX_MODULES, Stack, StackView, start};
use crate::engine::tasks::{Tasks, is_in_user_mode};

/// Unwinds the stacks of a paused machine, and names their functions.
pub struct StackReader<'e> {
    tasks: &'e Tasks,
    view: StackView<'e>,
    paging: PagingState,
}

impl fmt::Debug for StackReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackReader").finish_non_exhaustive()
    }
}

impl Inventory {
    /// A reader of stacks for the current pause. Before the kernel's page tables are known, those of `vcpu` are used.
    ///
    /// # Errors
    ///
    /// If the kernel has no ORC tables.
    pub fn stack_reader(&self, vcpu: &VcpuState) -> Result<StackReader<'_>, NoOrc> {
        let table = self.running.kernel.unwind_rules().map_err(Clone::clone)?;
        // A program's tables map little of the kernel where the kernel isolates page tables.
        let paging = self.running.modules.paging().unwrap_or(PagingState {
            cr0: vcpu.sregs.cr0,
            cr3: vcpu.sregs.cr3,
            cr4: vcpu.sregs.cr4,
            efer: vcpu.sregs.efer,
        });
        Ok(StackReader {
            tasks: &self.records.tasks,
            view: self.records.stacks.view(paging, table, MAX_MODULES),
            paging,
        })
    }
}

impl StackReader<'_> {
    /// The task that a vCPU runs; `None` before the first task, and in the kernel's entry code.
    #[must_use]
    pub fn task_of(&self, vcpu: &VcpuState) -> Option<Task> {
        self.tasks.of_stopped(vcpu, &self.paging)
    }

    /// The kernel stack of a vCPU; `None` while the vCPU runs a program.
    #[must_use]
    pub fn of_vcpu(&self, vcpu: &VcpuState) -> Option<KernelStack> {
        let start = Start::Stopped(start(&vcpu.regs));
        (!is_in_user_mode(vcpu)).then(|| self.view.unwind(start))
    }

    /// The kernel stack of a task that is on no processor.
    #[must_use]
    pub fn of_switched_out(&self, frame: SwitchFrame) -> KernelStack {
        self.view.unwind(Start::SwitchedOut(frame))
    }

    /// A stack with names. The machine may run.
    #[must_use]
    pub fn named(&self, stack: &KernelStack) -> Stack {
        self.view.named(stack)
    }
}
