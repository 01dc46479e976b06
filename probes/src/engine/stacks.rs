//! The stacks of hits and returns.
//!
//! A stack is read at an exit, on the vCPU's thread, before the instruction is executed: the vCPU itself cannot change the stack
//! meanwhile. The rules of the kernel come from its file, those of a module from guest memory. Details: `docs/stacks.md`.

use std::sync::Arc;

use address::Gva;
use detour::Detour;
use events::StackFrame;
use inspect::RunningTask;
use inspect::stacks::{
    GeneralRegisters, KnownPrograms, NamedFrame, NamedModules, NamedProgram, NamedStack,
    ProgramReader, StackKernel, StackLimits, StackView,
};
use introspect::orc::{Displaced, Start, TrampolineLayout};
use introspect::{Btf, Modules, PagingState, PhysMemory, SymbolTable, TaskLayout};

use crate::engine::program_stacks::ProgramPart;
use crate::engine::running::Running;
use crate::engine::tasks::Tasks;

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
    /// The stack of the program that has called the kernel.
    pub program: ProgramPart,
}

impl Stack {
    /// The kernel stack `stack`, and that of the program behind it.
    #[must_use]
    pub fn new(stack: NamedStack, program: Option<NamedProgram>) -> Self {
        let frame = |frame: NamedFrame| StackFrame {
            address: frame.address.into(),
            symbol: frame.symbol,
            is_return_address: frame.is_return_address,
            module: frame.module,
            build_id: frame.build_id,
            source: None,
        };
        Self {
            frames: stack.frames.into_iter().map(frame).collect(),
            incomplete: stack.incomplete,
            program: program.map(ProgramPart::from).unwrap_or_default(),
        }
    }

    /// The frames and the reason for an event, and the program's part.
    pub(crate) fn parts(
        stack: Option<Self>,
    ) -> (Option<Vec<StackFrame>>, Option<String>, ProgramPart) {
        stack.map_or((None, None, ProgramPart::default()), |stack| {
            (Some(stack.frames), stack.incomplete, stack.program)
        })
    }
}

/// Unwinds stacks in guest memory.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(crate) running: Arc<Running>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) named: NamedModules,
    pub(crate) programs: KnownPrograms,
}

impl Stacks {
    /// The stack of a 64-bit program with these registers, which has not entered the kernel. `paging` are the kernel's page tables. The vCPU
    /// must be out of the guest.
    pub(crate) fn of_program(
        &self,
        paging: &PagingState,
        regs: &vmm::kvm_regs,
        task: Option<Gva>,
    ) -> Stack {
        let reader = ProgramReader::for_one(self, &self.programs, *paging);
        let in_kernel = NamedStack {
            frames: Vec::new(),
            incomplete: None,
        };
        Stack::new(in_kernel, Some(reader.at(general(regs), task)))
    }

    /// Whether a vCPU with these page tables and registers executes one of `functions`, or a callee. `None` if the stack cannot be read up
    /// to its end. The vCPU must be out of the guest.
    pub(crate) fn is_within(
        &self,
        paging: &PagingState,
        regs: &vmm::kvm_regs,
        functions: &[&str],
    ) -> Option<bool> {
        let table = self.running.kernel.unwind_rules().ok()?;
        let slide = self.running.slide()?.cast_unsigned();
        let view = StackView::new(self, table, &self.named, *paging, LIMITS);
        let stack = view.unwind(Start::Stopped(general(regs).start()));
        let symbols = self.running.kernel.symbols();
        let is_within = stack.frames.iter().any(|frame| {
            let within = frame.ip.0.wrapping_sub(u64::from(frame.is_return_address));
            let found = symbols.resolve(Gva(within.wrapping_sub(slide)));
            found.is_some_and(|found| functions.contains(&&*found.symbol.name))
        });
        (is_within || stack.incomplete.is_none()).then_some(is_within)
    }

    /// The stack of a vCPU with these page tables and registers, from RIP on, and that of the program behind it, if `task` is known. Any thread
    /// may call this; the vCPU must be out of the guest.
    pub(crate) fn of(
        &self,
        paging: &PagingState,
        regs: &vmm::kvm_regs,
        task: Option<Gva>,
    ) -> Stack {
        let table = match self.running.kernel.unwind_rules() {
            Ok(table) => table,
            Err(why) => return Stack::new(NamedStack::without_frames(why), None),
        };
        let view = StackView::new(self, table, &self.named, *paging, LIMITS);
        let stack = view.unwind(Start::Stopped(general(regs).start()));
        let program = ProgramReader::for_one(self, &self.programs, *paging).behind(&stack, task);
        Stack::new(view.named(&stack), program)
    }
}

/// The general registers.
pub(crate) const fn general(regs: &vmm::kvm_regs) -> GeneralRegisters {
    GeneralRegisters([
        regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp, regs.r8,
        regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15, regs.rip,
    ])
}

impl StackKernel for Stacks {
    fn memory(&self) -> &dyn PhysMemory {
        &self.running.planter
    }

    fn data(&self) -> &dyn PhysMemory {
        &*self.running.memory
    }

    fn symbols(&self) -> &SymbolTable {
        self.running.kernel.symbols()
    }

    fn types(&self) -> Result<&Btf, String> {
        self.running.kernel.types().map_err(ToString::to_string)
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
        self.running.kernel.tasks().copied()
    }

    fn task(&self, paging: &PagingState, at: Gva) -> Option<RunningTask> {
        self.tasks.detailed(paging, at)
    }

    fn displaced(&self, at: Gva) -> Option<Displaced> {
        self.detour.displaced_at(at)
    }
}
