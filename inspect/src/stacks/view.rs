//! Unwinding in a kernel's memory, and the names of functions.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::sync::Arc;

use address::Gva;
use introspect::orc::{
    CodeFrame, Displaced, Incomplete, KernelStack, OrcTable, Rule, StackSource, Start, unwind,
};
use introspect::{Module, PagingState, Symbol, Walks};

use super::kernel::StackKernel;
use super::module_code::ModuleCode;
use super::named::{NamedFrame, NamedStack};
use super::named_modules::NamedModules;

/// The most frames of a stack: many events may wait for a reader.
const MAX_FRAMES: usize = 64;
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

/// The limits of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackLimits {
    /// The most modules whose symbols are read.
    pub modules: usize,
    /// The most steps of all stacks together: words read, modules looked at.
    pub steps: usize,
}

/// A kernel during the unwinding of a stack, or of several of one moment: page tables are remembered.
pub struct StackView<'k> {
    kernel: &'k dyn StackKernel,
    table: &'k OrcTable,
    named: &'k NamedModules,
    walks: Walks,
    /// Read once, for the first frame outside the kernel's image: a false list may be long.
    modules: OnceCell<ModuleCode>,
    /// The number of modules whose symbols may still be read.
    may_read: Cell<usize>,
    /// The number of steps, and those that are left.
    steps: usize,
    left: Cell<usize>,
}

impl fmt::Debug for StackView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackView")
            .field("walks", &self.walks)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl<'k> StackView<'k> {
    /// The kernel in the address space of `paging`. `named` are modules whose symbols are known.
    #[must_use]
    pub fn new(
        kernel: &'k dyn StackKernel,
        table: &'k OrcTable,
        named: &'k NamedModules,
        paging: PagingState,
        limits: StackLimits,
    ) -> Self {
        Self {
            kernel,
            table,
            named,
            walks: Walks::new(paging),
            modules: OnceCell::new(),
            may_read: Cell::new(limits.modules),
            steps: limits.steps,
            left: Cell::new(limits.steps),
        }
    }

    /// Unwinds the stack from `start` on, 64 frames at the most. The processor or the task must not run.
    #[must_use]
    pub fn unwind(&self, start: Start) -> KernelStack {
        let mut stack = unwind(self, start, MAX_FRAMES);
        if self.left.get() == 0 {
            stack.incomplete = Some(Incomplete::TooCostly(self.steps));
        }
        stack
    }

    /// The functions of a stack. The guest may run.
    #[must_use]
    pub fn named(&self, stack: &KernelStack) -> NamedStack {
        let frames = stack.frames.iter().map(|frame| self.frame(*frame));
        NamedStack {
            frames: frames.collect(),
            incomplete: stack.incomplete.as_ref().map(Incomplete::to_string),
        }
    }

    /// Takes steps; `None` if there are not as many left.
    fn take(&self, steps: usize) -> Option<()> {
        let left = self.left.get().checked_sub(steps);
        self.left.set(left.unwrap_or(0));
        left.map(drop)
    }

    fn read(&self, at: Gva) -> Option<u64> {
        self.take(1)?;
        self.walks.read_u64(self.kernel.memory(), at).ok()
    }

    /// The running address of the kernel's symbol `name`.
    fn running(&self, name: &str) -> Option<Gva> {
        let linked = self.kernel.symbols().address_of(name)?;
        Some(linked.wrapping_add(self.kernel.slide()?.cast_unsigned()))
    }

    /// The link-time address of `at`.
    fn unmoved(&self, at: Gva) -> Option<Gva> {
        Some(at.wrapping_sub(self.kernel.slide()?.cast_unsigned()))
    }

    /// The link-time address of `at`, if the kernel's image has code there.
    fn linked(&self, at: Gva) -> Option<Gva> {
        let linked = self.unmoved(at)?;
        self.kernel.holds_code(linked).then_some(linked)
    }

    /// The modules on the kernel's list, without symbols.
    fn modules(&self) -> Option<Vec<Module>> {
        let modules = self.kernel.modules()?;
        let head = self.running(MODULES)?;
        Some(modules.described(self.kernel.memory(), self.walks.state(), head))
    }

    /// The module whose code is at `at`, without symbols.
    fn module_at(&self, at: Gva) -> Option<&Module> {
        let read = || ModuleCode::new(self.modules().unwrap_or_default());
        self.modules.get_or_init(read).module_at(at)
    }

    /// `module` with its symbols, which are read once.
    fn with_symbols(&self, module: &Module) -> Option<Arc<Module>> {
        self.named.known(module).or_else(|| {
            self.may_read.set(self.may_read.get().checked_sub(1)?);
            let modules = self.kernel.modules()?;
            let read = modules.read_one(self.kernel.memory(), self.walks.state(), module.address());
            // A running guest may have loaded another module at the address.
            let read = Arc::new(read.ok().filter(|read| read.is_same_load(module))?);
            self.named.keep(Arc::clone(&read));
            Some(read)
        })
    }

    /// The rule for an instruction of a trampoline of ftrace.
    fn trampoline_rule(&self, at: Gva) -> Option<Rule> {
        let read = |at| self.read(at);
        let first = Gva(read(self.running(FTRACE_USERS)?)?);
        let layout = self.kernel.trampolines()?;
        let original = layout.original(first, self.running(LAST_FTRACE_USER)?, at, read)?;
        self.table.rule(self.kernel.symbols().address_of(original)?)
    }

    /// `rule`, unless it says that the stack ends in a thunk of an indirect call or return: up to 6.1, that means that the kernel knows no
    /// better.
    fn certain(&self, linked: Gva, rule: Rule) -> Rule {
        let is_thunk = || {
            let found = self.kernel.symbols().resolve(linked);
            found.is_some_and(|found| found.symbol.name.starts_with(THUNK))
        };
        match rule {
            Rule::EndOfStack if is_thunk() => Rule::Undefined,
            rule => rule,
        }
    }

    fn frame(&self, frame: CodeFrame) -> NamedFrame {
        // See `CodeFrame::is_return_address`.
        let within = Gva(frame.ip.0.wrapping_sub(u64::from(frame.is_return_address)));
        let bare = NamedFrame {
            address: frame.ip,
            is_return_address: frame.is_return_address,
            symbol: None,
            module: None,
            build_id: None,
        };
        match self.linked(within) {
            Some(linked) => NamedFrame {
                symbol: self.kernel_symbol(linked, frame),
                ..bare
            },
            None => self.in_module(within, bare),
        }
    }

    fn kernel_symbol(&self, linked: Gva, frame: CodeFrame) -> Option<String> {
        let symbol = self.kernel.symbols().resolve(linked)?.symbol;
        within(&symbol, self.unmoved(frame.ip)?)
    }

    /// The frame `bare` with the names of the module that has the code at `at`.
    fn in_module(&self, at: Gva, bare: NamedFrame) -> NamedFrame {
        let Some(module) = self.module_at(at) else {
            return bare;
        };
        let named = NamedFrame {
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
        NamedFrame {
            symbol: text.and_then(|symbol| within(symbol, named.address)),
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
        let rules = module.unwind_rules()?;
        let memory = self.kernel.memory();
        rules.rule(memory, self.walks.state(), self.table.format(), at)
    }

    fn word(&self, at: Gva) -> Option<u64> {
        self.read(at)
    }

    fn replaces_returns(&self, at: Gva) -> bool {
        let symbols = self.kernel.symbols();
        let linked = self.linked(at);
        linked.is_some_and(|linked| {
            TRACERS
                .iter()
                .any(|name| symbols.address_of(name) == Some(linked))
        })
    }

    fn displaced(&self, at: Gva) -> Option<Displaced> {
        let displaced = self.kernel.displaced(at)?;
        self.take(SEARCH_STEPS)?;
        Some(displaced)
    }
}
