//! Stacks of a paused machine.
//!
//! Unwinding needs the pause, since a running vCPU changes its stack. Names do not: the guest waits for the addresses alone.

use std::fmt;

use events::{Task, VcpuStack};
use introspect::PagingState;
use introspect::orc::{KernelStack, NoOrc, Start, SwitchFrame};
use text::Paused;
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

impl Inventory {
    /// The kernel stacks of the vCPUs; none if KVM refuses to tell the registers.
    pub(crate) fn vcpu_stacks(&self, paused: &dyn Paused) -> Vec<VcpuStack> {
        let vcpus = paused.vcpu_states().unwrap_or_default();
        let Some(first) = vcpus.first() else {
            return Vec::new();
        };
        let reader = self.stack_reader(first);
        let vcpus = (0..).zip(&vcpus);
        vcpus
            .map(|(number, vcpu)| vcpu_stack(number, vcpu, reader.as_ref()))
            .collect()
    }
}

fn vcpu_stack(
    number: usize,
    vcpu: &VcpuState,
    reader: Result<&StackReader<'_>, &NoOrc>,
) -> VcpuStack {
    let stack = match reader {
        Ok(reader) => reader.of_vcpu(vcpu).map(|stack| reader.named(&stack)),
        Err(why) => Some(Stack {
            frames: Vec::new(),
            incomplete: Some(why.to_string()),
        }),
    };
    let (frames, stack_incomplete) = Stack::parts(stack);
    VcpuStack {
        vcpu: number,
        task: reader.ok().and_then(|reader| reader.task_of(vcpu)),
        user_mode: is_in_user_mode(vcpu),
        stack: frames.unwrap_or_default(),
        stack_incomplete,
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
