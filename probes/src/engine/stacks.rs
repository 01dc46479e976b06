//! The stacks of hits and returns.
//!
//! A stack is read at an exit, on the vCPU's thread, before the instruction is executed: the vCPU itself cannot change the stack
//! meanwhile. The rules of the kernel come from its file, those of a module from guest memory. Details: `docs/stacks.md`.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use address::Gva;
use detour::Detour;
use events::StackFrame;
use introspect::orc::{
    CodeFrame, Displaced, Incomplete, KernelStack, OrcTable, Rule, StackSource, Start,
    StartRegisters, unwind,
};
use introspect::{Module, PagingState, Symbol, read_virt};

use crate::engine::module_code::ModuleCode;
use crate::engine::program_stacks::{ProgramPart, ProgramUnwinder, STACK_BYTES as PROGRAM_BYTES};
use crate::engine::running::Running;

/// The most frames of a stack: many events may wait for a reader.
const MAX_FRAMES: usize = 64;
/// The most modules whose symbols are kept.
pub(crate) const MAX_MODULES: usize = 64;
/// The most symbols that are kept: some 64 MB. The largest module has 60 000.
const MAX_SYMBOLS: usize = 1 << 19;
/// The most modules whose symbols are read for one stack, which the vCPU waits for. The kernel's own stacks pass through a few modules.
const MAX_READ: usize = 16;
/// The most steps for the stack of a hit, which the vCPU waits for: words read, modules looked at. A stack through 20 functions of modules
/// takes some thousand.
const MAX_STEPS: usize = 1 << 17;
/// The steps of a search in a module's rules, and of decoding a detour.
const SEARCH_STEPS: usize = 32;
/// The kernel's list of the users of ftrace, and its last entry.
const FTRACE_USERS: &str = "ftrace_ops_list";
const LAST_FTRACE_USER: &str = "ftrace_list_end";
/// The code to which functions return under the guest's own tracers: function graph tracing, and probes on returns by the names since
/// 5.18 and before.
const TRACERS: [&str; 4] = [
    "return_to_handler",
    "arch_rethook_trampoline",
    "__kretprobe_trampoline",
    "kretprobe_trampoline",
];
/// The beginning of the names of thunks for indirect calls and returns.
const THUNK: &str = "__x86_";
/// The kernel's list of modules.
const MODULES: &str = "modules";

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
    /// No frame, and the reason.
    #[must_use]
    pub fn without_frames(why: impl ToString) -> Self {
        Self {
            frames: Vec::new(),
            incomplete: Some(why.to_string()),
            program: ProgramPart::default(),
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
    pub(crate) named: Mutex<NamedModules>,
    pub(crate) programs: ProgramUnwinder,
}

/// Modules with their symbols, by the addresses of their `struct module`.
#[derive(Debug, Default)]
pub(crate) struct NamedModules {
    modules: HashMap<Gva, Arc<Module>>,
    symbols: usize,
}

impl NamedModules {
    /// Keeps `module` with this number of symbols; drops the others if there are too many.
    fn keep(&mut self, module: Arc<Module>, symbols: usize) {
        if self.modules.len() >= MAX_MODULES || self.symbols + symbols > MAX_SYMBOLS {
            *self = Self::default();
        }
        self.symbols += symbols;
        self.modules.insert(module.address(), module);
    }
}

impl Stacks {
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
            Err(why) => return Stack::without_frames(why),
        };
        let view = self.view(*paging, table, MAX_READ, MAX_STEPS);
        let stack = view.unwind(Start::Stopped(start(regs)));
        let left = Cell::new(PROGRAM_BYTES);
        Stack {
            program: self.programs.behind(paging, &stack, task, &left),
            ..view.named(&stack)
        }
    }

    /// The kernel in this address space. The symbols of `may_read` modules are read at the most, and all stacks together take `steps`.
    pub(crate) fn view<'s>(
        &'s self,
        paging: PagingState,
        table: &'s OrcTable,
        may_read: usize,
        steps: usize,
    ) -> StackView<'s> {
        StackView {
            stacks: self,
            paging,
            table,
            modules: OnceCell::new(),
            may_read: Cell::new(may_read),
            steps,
            left: Cell::new(steps),
        }
    }

    /// The modules on the kernel's list, without symbols.
    fn modules(&self, paging: &PagingState) -> Option<Vec<Module>> {
        let modules = self.running.kernel.modules().ok()?;
        let slide = self.running.located.get()?.slide.cast_unsigned();
        let head = self.running.kernel.symbols().address_of(MODULES)?;
        let memory = self.running.planter.own();
        Some(modules.described(&memory, paging, head.wrapping_add(slide)))
    }

    /// `module` with its symbols, if they are known.
    fn known(&self, module: &Module) -> Option<Arc<Module>> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let known = named.modules.get(&module.address());
        known.filter(|known| known.is_same_load(module)).cloned()
    }

    /// Reads the symbols of `module`.
    fn with_symbols(&self, paging: &PagingState, module: &Module) -> Option<Arc<Module>> {
        let modules = self.running.kernel.modules().ok()?;
        let read = modules.read_one(&self.running.planter.own(), paging, module.address());
        // A running guest may have loaded another module at the address.
        let read = Arc::new(read.ok().filter(|read| read.is_same_load(module))?);
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.keep(Arc::clone(&read), read.symbols().len());
        Some(read)
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

/// The kernel during the unwinding of a stack, or of several while the machine is paused.
pub(crate) struct StackView<'s> {
    pub(crate) stacks: &'s Stacks,
    paging: PagingState,
    table: &'s OrcTable,
    /// Read once, for the first frame outside the kernel's image: a false list may be long.
    modules: OnceCell<ModuleCode>,
    /// The number of modules whose symbols may still be read.
    may_read: Cell<usize>,
    /// The number of steps, and those that are left.
    steps: usize,
    left: Cell<usize>,
}

impl StackView<'_> {
    pub(crate) fn unwind(&self, start: Start) -> KernelStack {
        let mut stack = unwind(self, start, MAX_FRAMES);
        if self.left.get() == 0 {
            stack.incomplete = Some(Incomplete::TooCostly(self.steps));
        }
        stack
    }

    /// Takes steps; `None` if there are not as many left.
    fn take(&self, steps: usize) -> Option<()> {
        let left = self.left.get().checked_sub(steps);
        self.left.set(left.unwrap_or(0));
        left.map(drop)
    }

    fn read(&self, at: Gva) -> Option<u64> {
        self.take(1)?;
        self.stacks.running.word(&self.paging, at)
    }

    pub(crate) fn named(&self, stack: &KernelStack) -> Stack {
        let frames = stack.frames.iter().map(|frame| self.frame(*frame));
        Stack {
            frames: frames.collect(),
            incomplete: stack.incomplete.as_ref().map(Incomplete::to_string),
            program: ProgramPart::default(),
        }
    }

    /// The module whose code is at `at`, without symbols.
    fn module_at(&self, at: Gva) -> Option<&Module> {
        let read = || ModuleCode::new(self.stacks.modules(&self.paging).unwrap_or_default());
        self.modules.get_or_init(read).module_at(at)
    }

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
        let read = |at| self.read(at);
        let first = Gva(read(address(FTRACE_USERS)?)?);
        let layout = running.kernel.trampolines()?;
        let original = layout.original(first, address(LAST_FTRACE_USER)?, at, read)?;
        self.table.rule(symbols.address_of(original)?)
    }

    fn frame(&self, frame: CodeFrame) -> StackFrame {
        // See `CodeFrame::is_return_address`.
        let within = Gva(frame.ip.0.wrapping_sub(u64::from(frame.is_return_address)));
        let bare = StackFrame {
            address: frame.ip.into(),
            symbol: None,
            is_return_address: frame.is_return_address,
            module: None,
            build_id: None,
            source: None,
        };
        match self.linked(within) {
            Some(linked) => StackFrame {
                symbol: self.kernel_symbol(linked, frame),
                ..bare
            },
            None => self.in_module(within, frame, bare),
        }
    }

    /// `module` with its symbols, which are read once.
    fn with_symbols(&self, module: &Module) -> Option<Arc<Module>> {
        self.stacks.known(module).or_else(|| {
            self.may_read.set(self.may_read.get().checked_sub(1)?);
            self.stacks.with_symbols(&self.paging, module)
        })
    }

    /// `rule`, unless it says that the stack ends in a thunk of an indirect call or return: up to 6.1, that means that the kernel knows no
    /// better.
    fn certain(&self, linked: Gva, rule: Rule) -> Rule {
        let is_thunk = || {
            let found = self.stacks.running.kernel.symbols().resolve(linked);
            found.is_some_and(|found| found.symbol.name.starts_with(THUNK))
        };
        match rule {
            Rule::EndOfStack if is_thunk() => Rule::Undefined,
            rule => rule,
        }
    }

    fn kernel_symbol(&self, linked: Gva, frame: CodeFrame) -> Option<String> {
        let running = &self.stacks.running;
        let symbol = running.kernel.symbols().resolve(linked)?.symbol;
        let at = running.located.get()?.linked(frame.ip);
        within(&symbol, at)
    }

    /// The frame `bare` with the names of the module that has the code at `at`.
    fn in_module(&self, at: Gva, frame: CodeFrame, bare: StackFrame) -> StackFrame {
        let Some(module) = self.module_at(at) else {
            return bare;
        };
        let named = StackFrame {
            module: Some(module.name().to_owned()),
            ..bare
        };
        let Some(module) = self.with_symbols(module) else {
            return named;
        };
        let symbols = module.symbols();
        let after = symbols.partition_point(|symbol| symbol.address <= at);
        let text = symbols[..after]
            .iter()
            .rev()
            .find(|symbol| symbol.is_text());
        StackFrame {
            symbol: text.and_then(|symbol| within(symbol, frame.ip)),
            build_id: module.build_id().map(ToString::to_string),
            ..named
        }
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
            return self
                .table
                .rule(linked)
                .map(|rule| self.certain(linked, rule));
        }
        let Some(module) = self.module_at(at) else {
            return self.trampoline_rule(at);
        };
        self.take(SEARCH_STEPS)?;
        let memory = self.stacks.running.planter.own();
        let rules = module.unwind_rules()?;
        rules.rule(&memory, &self.paging, self.table.format(), at)
    }

    fn word(&self, at: Gva) -> Option<u64> {
        self.read(at)
    }

    fn replaces_returns(&self, at: Gva) -> bool {
        let symbols = self.stacks.running.kernel.symbols();
        let linked = self.linked(at);
        linked.is_some_and(|linked| {
            TRACERS
                .iter()
                .any(|name| symbols.address_of(name) == Some(linked))
        })
    }

    fn displaced(&self, at: Gva) -> Option<Displaced> {
        let laid = self.stacks.detour.laid_at(at)?;
        self.take(SEARCH_STEPS)?;
        let mut code = vec![0; laid.len];
        let memory = &self.stacks.running.planter;
        read_virt(memory, &self.paging, laid.entry, &mut code).ok()?;
        laid.displaced_at(&code, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_symbols_and_modules_have_limits() {
        let mut named = NamedModules::default();
        let mut number = 0;
        let mut keep = |named: &mut NamedModules, symbols| {
            number += 1;
            let module = Module::with_regions(Gva(number), "m", Vec::new());
            named.keep(Arc::new(module), symbols);
            (named.modules.len(), named.symbols)
        };
        assert_eq!(keep(&mut named, MAX_SYMBOLS / 2), (1, MAX_SYMBOLS / 2));
        assert_eq!(keep(&mut named, MAX_SYMBOLS / 2), (2, MAX_SYMBOLS));
        assert_eq!(keep(&mut named, 1), (1, 1));
        for kept in 2..=MAX_MODULES {
            assert_eq!(keep(&mut named, 0), (kept, 1));
        }
        assert_eq!(keep(&mut named, 0), (1, 0));
    }
}
