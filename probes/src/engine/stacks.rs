//! The stacks of hits and returns.
//!
//! A stack is read at an exit, on the vCPU's thread, before the instruction is executed: the vCPU itself cannot change the stack
//! meanwhile. The rules of the kernel come from its file, those of a module from guest memory. Details: `docs/stacks.md`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use address::Gva;
use detour::Detour;
use events::StackFrame;
use introspect::orc::{
    CodeFrame, Displaced, Incomplete, OrcTable, Rule, StackSource, StartRegisters, unwind,
};
use introspect::{Module, PagingState, Symbol, read_virt};

use crate::engine::running::Running;

/// The most frames of a stack: many events may wait for a reader.
const MAX_FRAMES: usize = 64;
/// The most modules whose symbols are kept.
const MAX_MODULES: usize = 64;
/// The kernel's list of the users of ftrace, and its last entry.
const FTRACE_USERS: &str = "ftrace_ops_list";
const LAST_FTRACE_USER: &str = "ftrace_list_end";
/// The kernel's list of modules.
const MODULES: &str = "modules";

/// A stack with names.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) frames: Vec<StackFrame>,
    /// The reason why the stack ends early.
    pub(crate) incomplete: Option<String>,
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
    /// Modules with their symbols, by the addresses of their `struct module`.
    pub(crate) named: Mutex<HashMap<Gva, Arc<Module>>>,
}

impl Stacks {
    /// The stack of a vCPU with these page tables and registers, from RIP on. Any thread may call this; the vCPU must be out of the guest.
    pub(crate) fn of(&self, paging: &PagingState, regs: &vmm::kvm_regs) -> Stack {
        let table = match self.running.kernel.unwind_rules() {
            Ok(table) => table,
            Err(why) => {
                return Stack {
                    frames: Vec::new(),
                    incomplete: Some(why.to_string()),
                };
            }
        };
        let view = StackView {
            stacks: self,
            paging,
            table,
        };
        let stack = unwind(&view, start(regs), MAX_FRAMES);
        Stack {
            frames: stack
                .frames
                .iter()
                .map(|frame| view.named(*frame))
                .collect(),
            incomplete: stack.incomplete.as_ref().map(Incomplete::to_string),
        }
    }

    /// The module whose code is at `at`, without symbols.
    fn module_at(&self, paging: &PagingState, at: Gva) -> Option<Module> {
        let modules = self.running.kernel.modules().ok()?;
        let slide = self.running.located.get()?.slide.cast_unsigned();
        let head = self.running.kernel.symbols().address_of(MODULES)?;
        let memory = self.running.planter.own();
        let found = modules.holding(&memory, paging, head.wrapping_add(slide), at);
        found.ok().flatten()
    }

    /// `module` with its symbols, which are read once.
    fn with_symbols(&self, paging: &PagingState, module: &Module) -> Option<Arc<Module>> {
        let address = module.address();
        let named = || self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = named().get(&address)
            && known.is_same_load(module)
        {
            return Some(Arc::clone(known));
        }
        let modules = self.running.kernel.modules().ok()?;
        let read = modules.read_one(&self.running.planter.own(), paging, address);
        let read = Arc::new(read.ok()?);
        let mut named = named();
        if named.len() >= MAX_MODULES {
            named.clear();
        }
        named.insert(address, Arc::clone(&read));
        Some(read)
    }
}

/// The registers that an unwinding starts with.
fn start(regs: &vmm::kvm_regs) -> StartRegisters {
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

/// The kernel during one unwinding.
struct StackView<'s> {
    stacks: &'s Stacks,
    paging: &'s PagingState,
    table: &'s OrcTable,
}

impl StackView<'_> {
    /// The link-time address of `at`, if the kernel's image has code there.
    fn linked(&self, at: Gva) -> Option<Gva> {
        let running = &self.stacks.running;
        let linked = running.located.get()?.linked(at);
        running.kernel.holds_code(linked).then_some(linked)
    }

    /// The rule for an instruction of a trampoline of ftrace.
    fn trampoline_rule(&self, at: Gva) -> Option<Rule> {
        let running = &self.stacks.running;
        let symbols = running.kernel.symbols();
        let slide = running.located.get()?.slide.cast_unsigned();
        let address = |name| Some(symbols.address_of(name)?.wrapping_add(slide));
        let read = |at| running.word(self.paging, at);
        let first = Gva(read(address(FTRACE_USERS)?)?);
        let layout = running.kernel.trampolines()?;
        let original = layout.original(first, address(LAST_FTRACE_USER)?, at, read)?;
        self.table.rule(symbols.address_of(original)?)
    }

    fn named(&self, frame: CodeFrame) -> StackFrame {
        // See `CodeFrame::is_return_address`.
        let within = Gva(frame.ip.0.wrapping_sub(u64::from(frame.is_return_address)));
        let (symbol, module) = match self.linked(within) {
            Some(linked) => (self.kernel_symbol(linked, frame), None),
            None => self.module_symbol(within, frame),
        };
        StackFrame {
            address: frame.ip.into(),
            symbol,
            module,
        }
    }

    fn kernel_symbol(&self, linked: Gva, frame: CodeFrame) -> Option<String> {
        let running = &self.stacks.running;
        let symbol = running.kernel.symbols().resolve(linked)?.symbol;
        let at = running.located.get()?.linked(frame.ip);
        within(&symbol, at)
    }

    fn module_symbol(&self, at: Gva, frame: CodeFrame) -> (Option<String>, Option<String>) {
        let Some(module) = self.stacks.module_at(self.paging, at) else {
            return (None, None);
        };
        let name = Some(module.name().to_owned());
        let Some(module) = self.stacks.with_symbols(self.paging, &module) else {
            return (None, name);
        };
        let symbols = module.symbols();
        let after = symbols.partition_point(|symbol| symbol.address <= at);
        let text = symbols[..after]
            .iter()
            .rev()
            .find(|symbol| symbol.is_text());
        (text.and_then(|symbol| within(symbol, frame.ip)), name)
    }
}

/// `symbol+0xoffset/0xsize`, as the kernel prints it.
fn within(symbol: &Symbol, at: Gva) -> Option<String> {
    let offset = at.offset_from(symbol.address)?;
    Some(format!("{}+{offset:#x}/{:#x}", symbol.name, symbol.size))
}

impl StackSource for StackView<'_> {
    fn rule(&self, at: Gva) -> Option<Rule> {
        if let Some(linked) = self.linked(at) {
            return self.table.rule(linked);
        }
        let Some(module) = self.stacks.module_at(self.paging, at) else {
            return self.trampoline_rule(at);
        };
        let memory = self.stacks.running.planter.own();
        let rules = module.unwind_rules()?;
        rules.rule(&memory, self.paging, self.table.format(), at)
    }

    fn word(&self, at: Gva) -> Option<u64> {
        self.stacks.running.word(self.paging, at)
    }

    fn displaced(&self, at: Gva) -> Option<Displaced> {
        let laid = self.stacks.detour.laid_at(at)?;
        let mut code = vec![0; laid.len];
        let memory = &self.stacks.running.planter;
        read_virt(memory, self.paging, laid.entry, &mut code).ok()?;
        laid.displaced_at(&code, at)
    }
}
