//! Stacks of a paused machine.
//!
//! Unwinding needs the pause, since a running vCPU changes its stack. Names do not: the guest waits for the addresses alone.

use std::cell::Cell;
use std::fmt;

use address::Gva;
use errors::chain;
use events::{Task, VcpuStack};
use introspect::PagingState;
use introspect::orc::{KernelStack, NoOrc, Start, SwitchFrame};
use text::Paused;
use vmm::VcpuState;

use crate::engine::inventory::Inventory;
use crate::engine::program_stacks::{ProgramPart, ProgramUnwinder};
use crate::engine::stacks::{MAX_MODULES, Stack, StackView, start};
use crate::engine::tasks::{Tasks, is_in_user_mode};

/// Unwinds the stacks of a paused machine, and names their functions.
pub struct StackReader<'e> {
    tasks: &'e Tasks,
    view: StackView<'e>,
    paging: PagingState,
    programs: &'e ProgramUnwinder,
    /// What the stacks of programs may still read in the pause, bytes.
    left: Cell<usize>,
}

impl fmt::Debug for StackReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackReader").finish_non_exhaustive()
    }
}

/// The most steps for the stacks of a pause: those of 4096 tasks take less than a million.
const MAX_STEPS: usize = 1 << 21;

/// The most bytes that the stacks of programs read in a pause: those of some thousand threads.
const MAX_PROGRAM_BYTES: usize = 256 << 20;

/// 64-bit mode is active.
const EFER_LMA: u64 = 1 << 10;

/// Why there are no stacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStacks {
    /// The kernel describes no stacks.
    #[error(transparent)]
    NoOrc(#[from] NoOrc),
    /// The kernel has not booted far enough.
    #[error("the kernel has not said where it runs, so its stacks cannot be unwound")]
    NotLocated,
}

/// Where a vCPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VcpuPosition {
    /// In a program.
    UserMode,
    /// Not in 64-bit mode: the guest has not started the vCPU, or has reset it.
    NotStarted,
    /// In the kernel, with this stack.
    Kernel(KernelStack),
}

/// Why a vCPU has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest has not started the vCPU")]
pub struct NotStarted;

impl VcpuPosition {
    /// The vCPU's stack in the kernel: in a program, without frames.
    ///
    /// # Errors
    ///
    /// If the guest has not started the vCPU.
    pub fn into_stack(self) -> Result<KernelStack, NotStarted> {
        match self {
            Self::Kernel(stack) => Ok(stack),
            Self::UserMode => Ok(KernelStack::default()),
            Self::NotStarted => Err(NotStarted),
        }
    }
}

impl Inventory {
    /// A reader of stacks for the current pause. Before the kernel's page tables are known, those of `vcpu` are used. The tables that the
    /// reader needs are looked up at the first call, which should be made before the pause.
    ///
    /// # Errors
    ///
    /// If the kernel has no ORC tables, or has not reported where it runs.
    pub fn stack_reader(&self, vcpu: &VcpuState) -> Result<StackReader<'_>, NoStacks> {
        let kernel = &self.running.kernel;
        let table = kernel.unwind_rules().map_err(Clone::clone)?;
        let _ = (kernel.modules(), kernel.trampolines());
        self.records.stacks.programs.prepare();
        self.slide().ok_or(NoStacks::NotLocated)?;
        // A program's tables map little of the kernel where the kernel isolates page tables.
        let paging = self.running.modules.paging().unwrap_or(PagingState {
            cr0: vcpu.sregs.cr0,
            cr3: vcpu.sregs.cr3,
            cr4: vcpu.sregs.cr4,
            efer: vcpu.sregs.efer,
        });
        let stacks = &self.records.stacks;
        Ok(StackReader {
            tasks: &self.records.tasks,
            view: stacks.view(paging, table, MAX_MODULES, MAX_STEPS),
            paging,
            programs: &stacks.programs,
            left: Cell::new(MAX_PROGRAM_BYTES),
        })
    }
}

impl Inventory {
    /// The kernel stacks of the vCPUs. If KVM refuses the registers, each is empty and says so.
    pub(crate) fn vcpu_stacks(&self, paused: &dyn Paused) -> Vec<VcpuStack> {
        let vcpus = match paused.vcpu_states() {
            Ok(vcpus) => vcpus,
            Err(why) => {
                let why = chain(&why);
                return (0..paused.vcpus())
                    .map(|number| absent(number, &why))
                    .collect();
            }
        };
        let first = vcpus.first().copied().unwrap_or_default();
        let reader = self.stack_reader(&first);
        let vcpus = (0..).zip(&vcpus);
        vcpus
            .map(|(number, vcpu)| vcpu_stack(number, vcpu, reader.as_ref()))
            .collect()
    }
}

/// A vCPU about which nothing is known.
fn absent(number: usize, why: &str) -> VcpuStack {
    VcpuStack {
        vcpu: number,
        task: None,
        user_mode: false,
        stack: Vec::new(),
        stack_incomplete: Some(why.to_owned()),
        program_stack: None,
        program_stack_incomplete: None,
    }
}

fn vcpu_stack(
    number: usize,
    vcpu: &VcpuState,
    reader: Result<&StackReader<'_>, &NoStacks>,
) -> VcpuStack {
    let named = match reader {
        Ok(reader) => {
            let position = reader.of_vcpu(vcpu);
            let program = reader.program_of_vcpu(vcpu, &position);
            let stack = position.into_stack();
            let stack = stack.map_or_else(Stack::without_frames, |stack| reader.named(&stack));
            Stack { program, ..stack }
        }
        Err(why) => Stack::without_frames(why),
    };
    VcpuStack {
        vcpu: number,
        task: reader.ok().and_then(|reader| reader.task_of(vcpu)),
        user_mode: is_in_user_mode(vcpu),
        stack: named.frames,
        stack_incomplete: named.incomplete,
        program_stack: named.program.frames,
        program_stack_incomplete: named.program.incomplete,
    }
}

impl StackReader<'_> {
    /// The task that a vCPU runs; `None` before the kernel's per-CPU areas are there.
    #[must_use]
    pub fn task_of(&self, vcpu: &VcpuState) -> Option<Task> {
        self.tasks.of_stopped(vcpu, &self.paging)
    }

    /// Where a vCPU is.
    #[must_use]
    pub fn of_vcpu(&self, vcpu: &VcpuState) -> VcpuPosition {
        if vcpu.sregs.efer & EFER_LMA == 0 {
            return VcpuPosition::NotStarted;
        }
        if is_in_user_mode(vcpu) {
            return VcpuPosition::UserMode;
        }
        VcpuPosition::Kernel(self.view.unwind(Start::Stopped(start(&vcpu.regs))))
    }

    /// The program that a vCPU runs, or that has called the kernel on it.
    #[must_use]
    pub fn program_of_vcpu(&self, vcpu: &VcpuState, position: &VcpuPosition) -> ProgramPart {
        let task = || self.tasks.address_of_stopped(vcpu, &self.paging);
        match position {
            VcpuPosition::NotStarted => ProgramPart::default(),
            VcpuPosition::Kernel(stack) => self.program_behind(stack, task()),
            VcpuPosition::UserMode => {
                let programs = self.programs;
                programs.of_vcpu(&self.paging, vcpu, task(), &self.left)
            }
        }
    }

    /// The program at the end of a kernel stack, which is that of the task with the `task_struct` at `task`.
    #[must_use]
    pub fn program_behind(&self, stack: &KernelStack, task: Option<Gva>) -> ProgramPart {
        let programs = self.programs;
        programs.behind(&self.paging, stack, task, &self.left)
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
