//! The stacks of hits and returns.
//!
//! A stack is read at an exit, on the vCPU's thread, before the instruction is executed: the vCPU itself cannot change the stack
//! meanwhile. The rules of the kernel come from its file, those of a module from guest memory. Details: `docs/stacks.md`.

use std::sync::Arc;

use address::Gva;
use detour::Detour;
use events::StackFrame;
use inspect::stacks::{NamedFrame, NamedModules, NamedStack, StackKernel, StackLimits, StackView};
use introspect::orc::{Displaced, Start, StartRegisters, TrampolineLayout};
use introspect::{Modules, PagingState, PhysMemory, SymbolTable, TaskLayout, read_virt};

use crate::engine::running::Running;

/// The limits for the stack of a hit, which the vCPU waits for. The kernel's own stacks pass through a few modules; a stack through 20
/// functions of modules takes some thousand steps.
const LIMITS: StackLimits = StackLimits {
    modules: 16,
    steps: 1 << 17,
};

/// A stack with names.
#[derive(Debug)]
pub struct Stack {
    /// The frames, the innermost function first.
    pub frames: Vec<StackFrame>,
    /// The reason why the stack ends early.
    pub incomplete: Option<String>,
}

impl From<NamedStack> for Stack {
    fn from(stack: NamedStack) -> Self {
        let frame = |frame: NamedFrame| StackFrame {
            address: frame.address.into(),
            symbol: frame.symbol,
            module: frame.module,
            source: None,
        };
        Self {
            frames: stack.frames.into_iter().map(frame).collect(),
            incomplete: stack.incomplete,
        }
    }
}

impl Stack {
    /// The frames and the reason for an event.
    pub(crate) fn parts(stack: Option<Self>) -> (Option<Vec<StackFrame>>, Option<String>) {
        stack.map_or((None, None), |stack| (Some(stack.frames), stack.incomplete))
    }
}

/// Unwinds stacks in guest memory.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(crate) running: Arc<Running>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) named: NamedModules,
}

impl Stacks {
    /// The stack of a vCPU with these page tables and registers, from RIP on. Any thread may call this; the vCPU must be out of the guest.
    pub(crate) fn of(&self, paging: &PagingState, regs: &vmm::kvm_regs) -> Stack {
        let table = match self.running.kernel.unwind_rules() {
            Ok(table) => table,
            Err(why) => return NamedStack::without_frames(why).into(),
        };
        let view = StackView::new(self, table, &self.named, *paging, LIMITS);
        let stack = view.unwind(Start::Stopped(start(regs)));
        view.named(&stack).into()
    }
}

/// The registers that an unwinding starts with.
pub(crate) fn start(regs: &vmm::kvm_regs) -> StartRegisters {
    StartRegisters {
        ip: regs.rip,
        sp: regs.rsp,
        bp: regs.rbp,
        ax: regs.rax,
        dx: regs.rdx,
        di: regs.rdi,
        r10: regs.r10,
        r13: regs.r13,
    }
}

impl StackKernel for Stacks {
    fn memory(&self) -> &dyn PhysMemory {
        &self.running.planter
    }

    fn symbols(&self) -> &SymbolTable {
        self.running.kernel.symbols()
    }

    fn slide(&self) -> Option<i64> {
        self.running.slide()
    }

    fn holds_code(&self, linked: Gva) -> bool {
        self.running.kernel.holds_code(linked)
    }

    fn modules(&self) -> Option<&Modules> {
        self.running.kernel.modules().ok()
    }

    fn trampolines(&self) -> Option<TrampolineLayout> {
        self.running.kernel.trampolines()
    }

    fn tasks(&self) -> Option<TaskLayout> {
        self.running.kernel.tasks()
    }

    fn displaced(&self, paging: &PagingState, at: Gva) -> Option<Displaced> {
        let laid = self.detour.laid_at(at)?;
        let mut code = vec![0; laid.len];
        read_virt(&self.running.planter, paging, laid.entry, &mut code).ok()?;
        laid.displaced_at(&code, at)
    }
}
