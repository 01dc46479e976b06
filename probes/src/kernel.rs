//! The guest's kernel, as known before the run: file, symbols, and the sites the kernel patches.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use address::{Gpa, Gva};
use introspect::insn::{Boundaries, boundaries};
use introspect::optimise::Survey;
use introspect::orc::{NoOrc, OrcTable, TrampolineLayout};
use introspect::signature::Untyped;
use introspect::{
    Btf, BtfError, BuildId, ImageError, KernelImage, KernelLayout, ModuleEvent, Modules,
    ModulesError, OptimisedLayout, PatchSites, PerCpu, Signature, Symbol, SymbolTable, Syscalls,
    TaskLayout, Tracepoints, kallsyms,
};

/// An unusable kernel file.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The file is not a kernel.
    #[error("cannot read the kernel's ELF file")]
    Image(#[from] ImageError),
    /// The kernel has no symbols.
    #[error(
        "the kernel has no symbols that hyprobe can read (neither an ELF symbol table nor kallsyms)"
    )]
    Symbols(#[from] kallsyms::KallsymsError),
}

/// The reason why the modules of a kernel cannot be probed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ModulesUnknown {
    /// The kernel has no type information (BTF).
    #[error("the kernel has no type information (BTF): {0}")]
    Types(#[from] BtfError),
    /// The type information is not enough.
    #[error(transparent)]
    Layout(#[from] ModulesError),
    /// A function is missing whose entry is a [`ModuleEvent`].
    #[error("the kernel has no function `{function}`")]
    NoEvent {
        /// The function's name.
        function: &'static str,
    },
}

/// The reason why the arguments of a function have no types.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoSignature {
    /// The kernel has no type information.
    #[error("the kernel has no type information (BTF): {0}")]
    Types(#[from] BtfError),
    /// The type information does not have the function.
    #[error(transparent)]
    Untyped(#[from] Untyped),
}

/// The kernel at its link-time addresses. A clone includes the results computed so far.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: KernelImage,
    symbols: SymbolTable,
    sites: PatchSites,
    layout: Option<KernelLayout>,
    types: OnceLock<Result<Btf, BtfError>>,
    modules: OnceLock<Result<Modules, ModulesUnknown>>,
    optimised_kprobes: OnceLock<Option<OptimisedLayout>>,
    tasks: OnceLock<Option<TaskLayout>>,
    syscalls: OnceLock<Syscalls>,
    tracepoints: OnceLock<Tracepoints>,
    processors: OnceLock<Processors>,
    survey: OnceLock<Survey>,
    unwind_rules: OnceLock<Result<OrcTable, NoOrc>>,
    trampolines: OnceLock<Option<TrampolineLayout>>,
    entry: OnceLock<Option<Range<Gva>>>,
}

/// The kernel's per-processor variables that programs can read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processors {
    /// The task that the processor runs.
    pub(crate) task: Option<PerCpu>,
    /// The processor's number.
    pub(crate) number: Option<PerCpu>,
}

/// The maximum number of bytes decoded of a function.
pub(crate) const MAX_FUNCTION_BYTES: u64 = 1 << 20;

impl Kernel {
    /// Reads a decompressed kernel.
    ///
    /// # Errors
    ///
    /// If the file is not an ELF kernel, or has no symbols.
    pub fn from_vmlinux(vmlinux: impl Into<Arc<[u8]>>) -> Result<Self, KernelError> {
        let image = KernelImage::parse(vmlinux)?;
        let symbols = kallsyms::from_image(&image)?;
        let sites = PatchSites::read(&image, &symbols);
        let layout = KernelLayout::from_symbols(&symbols);
        Ok(Self {
            image,
            symbols,
            sites,
            layout,
            types: OnceLock::new(),
            modules: OnceLock::new(),
            optimised_kprobes: OnceLock::new(),
            tasks: OnceLock::new(),
            syscalls: OnceLock::new(),
            tracepoints: OnceLock::new(),
            processors: OnceLock::new(),
            survey: OnceLock::new(),
            unwind_rules: OnceLock::new(),
            trampolines: OnceLock::new(),
            entry: OnceLock::new(),
        })
    }

    /// The kernel's symbols.
    #[must_use]
    pub fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    /// The sites that the kernel patches.
    #[must_use]
    pub fn sites(&self) -> &PatchSites {
        &self.sites
    }

    /// The kernel's types, read at the first call.
    ///
    /// # Errors
    ///
    /// If the kernel has no type information.
    pub fn types(&self) -> Result<&Btf, &BtfError> {
        let read = || Btf::from_image(&self.image, &self.symbols);
        self.types.get_or_init(read).as_ref()
    }

    /// The types of a function.
    ///
    /// # Errors
    ///
    /// If they are not known, or not for certain.
    pub fn signature(&self, function: &str) -> Result<Signature, NoSignature> {
        let types = self.types().map_err(Clone::clone)?;
        let named = self.symbols.lookup_all(function);
        if named.iter().filter(|symbol| symbol.is_text()).count() > 1 {
            return Err(Untyped::Ambiguous.into());
        }
        Ok(Signature::of_function(types, function)?)
    }

    /// The types of the system call `name`: by the kernel's own description, or else by the function that does the work of
    /// `__x64_sys_NAME`.
    ///
    /// # Errors
    ///
    /// If the kernel neither describes the call, nor has types for the function.
    pub fn syscall_signature(&self, name: &str) -> Result<Signature, NoSignature> {
        let types = self.types().map_err(Clone::clone)?;
        let read = || Syscalls::read(&self.image, &self.symbols, types);
        if let Some(arguments) = self.syscalls.get_or_init(read).arguments(name) {
            return Ok(Signature::of_syscall(types, name, arguments));
        }
        // The compiler has mostly inlined the first into the second, whose parameters are all `long`.
        let of = |prefix| self.signature(&format!("{prefix}{name}"));
        let found = of("__do_sys_").or_else(|_| of("__se_sys_"))?;
        Ok(found.as_syscall(name))
    }

    /// The kernel's tracepoints, read at the first call.
    ///
    /// # Errors
    ///
    /// If the kernel has no type information.
    pub fn tracepoints(&self) -> Result<&Tracepoints, &BtfError> {
        let types = self.types()?;
        let read = || Tracepoints::read(&self.image, &self.symbols, types);
        Ok(self.tracepoints.get_or_init(read))
    }

    /// The types of the tracepoint `name`, without its group.
    ///
    /// # Errors
    ///
    /// If they are not known, or not for certain.
    pub fn tracepoint_signature(&self, name: &str) -> Result<Signature, NoSignature> {
        let types = self.types().map_err(Clone::clone)?;
        Ok(Signature::of_tracepoint(types, name)?)
    }

    /// The layout of the kernel's module descriptions, computed at the first call.
    ///
    /// # Errors
    ///
    /// If the kernel has no type information for modules, or no modules.
    pub fn modules(&self) -> Result<&Modules, &ModulesUnknown> {
        self.modules
            .get_or_init(|| {
                for event in ModuleEvent::ALL {
                    let function = event.function();
                    if self.symbols.lookup(function).is_none() {
                        return Err(ModulesUnknown::NoEvent { function });
                    }
                }
                let types = self.types().map_err(Clone::clone)?;
                Ok(Modules::new(types)?)
            })
            .as_ref()
    }

    /// The layout of the kernel's optimised kprobes, whose jumps lie in the text; `None` if the kernel has no type information for them, or
    /// no optimised kprobes. Computed at the first call.
    pub(crate) fn optimised_kprobes(&self) -> Option<OptimisedLayout> {
        *self
            .optimised_kprobes
            .get_or_init(|| OptimisedLayout::from_btf(self.types().ok()?))
    }

    /// The per-processor variables that programs can read, located at the first call.
    pub(crate) fn processors(&self) -> Processors {
        *self.processors.get_or_init(|| {
            let types = self.types().ok();
            Processors {
                task: PerCpu::current_task(types, &self.symbols),
                number: PerCpu::cpu_number(types, &self.symbols),
            }
        })
    }

    /// The location of the task that a processor runs; `None` if the kernel's types and symbols do not reveal it. Computed at the first
    /// call.
    #[must_use]
    pub fn tasks(&self) -> Option<&TaskLayout> {
        let layout = || TaskLayout::new(self.types().ok()?, &self.symbols);
        self.tasks.get_or_init(layout).as_ref()
    }

    /// The facts that decide whether a jump can replace a probe's plant. The first call computes them, which takes up to a second; do not
    /// make the first call with the guest paused.
    #[must_use]
    pub fn survey(&self) -> &Survey {
        self.survey
            .get_or_init(|| Survey::of_kernel(&self.image, &self.symbols))
    }

    /// Uses a survey of this kernel that another process has made, unless there is one already.
    pub fn use_survey(&self, survey: Survey) {
        // A survey that was made here is the same.
        let _ = self.survey.set(survey);
    }

    /// The rules for unwinding the kernel's stacks, read at the first call: 4 MB.
    ///
    /// # Errors
    ///
    /// If the kernel has no ORC tables.
    pub fn unwind_rules(&self) -> Result<&OrcTable, &NoOrc> {
        let read = || OrcTable::read(&self.image, &self.symbols);
        self.unwind_rules.get_or_init(read).as_ref()
    }

    /// The layout of ftrace's trampolines; `None` if the kernel has none, or no type information. Computed at the first call.
    pub(crate) fn trampolines(&self) -> Option<TrampolineLayout> {
        *self
            .trampolines
            .get_or_init(|| TrampolineLayout::from_btf(self.types().ok()?))
    }

    /// Sets the layout of optimised kprobes, as if the kernel's types described them.
    #[cfg(test)]
    pub(crate) fn describe_kprobes(&self, layout: OptimisedLayout) {
        self.optimised_kprobes.get_or_init(|| Some(layout));
    }

    /// The kernel's version line.
    #[must_use]
    pub fn banner(&self) -> Option<&str> {
        self.image.banner()
    }

    /// The build-id of the kernel's file.
    #[must_use]
    pub fn build_id(&self) -> Option<BuildId> {
        BuildId::of_elf(self.image.bytes())
    }

    /// Whether `address` is code. Without section labels: whether the file has bytes at `address`.
    #[must_use]
    pub fn holds_code(&self, address: Gva) -> bool {
        match &self.layout {
            Some(layout) => layout.holds_code(address),
            None => self.image.bytes_at(address, 1).is_some(),
        }
    }

    /// The permanent text, if the kernel has labels for it.
    #[must_use]
    pub fn text(&self) -> Option<std::ops::Range<Gva>> {
        self.layout.as_ref().map(|layout| layout.text.clone())
    }

    /// The link-time addresses of the image, from the first byte to the last.
    #[must_use]
    pub fn image(&self) -> std::ops::Range<Gva> {
        self.image.virtual_range()
    }

    /// Whether `address` is in the kernel's entry and exit code, which may run on the page tables and the stack of a program.
    #[must_use]
    pub fn is_entry(&self, address: Gva) -> bool {
        let entry = self.entry.get_or_init(|| {
            let label = |name| self.symbols.address_of(name);
            Some(label("__entry_text_start")?..label("__entry_text_end")?)
        });
        entry.as_ref().is_some_and(|entry| entry.contains(&address))
    }

    /// Whether the memory at `address` is freed after boot.
    #[must_use]
    pub fn is_init(&self, address: Gva) -> bool {
        self.layout
            .as_ref()
            .is_some_and(|layout| layout.is_init(address))
    }

    /// The guest-physical address of `address`, for a kernel loaded at its link-time address.
    #[must_use]
    pub fn to_physical(&self, address: Gva) -> Option<Gpa> {
        self.image.to_physical(address)
    }

    /// The file's bytes at `address`.
    pub(crate) fn bytes_at(&self, address: Gva, len: usize) -> Option<&[u8]> {
        self.image.bytes_at(address, len)
    }

    /// The file's bytes of a function.
    #[must_use]
    pub fn function_bytes(&self, symbol: &Symbol) -> &[u8] {
        let size = symbol.size.min(MAX_FUNCTION_BYTES);
        usize::try_from(size)
            .ok()
            .and_then(|size| self.image.bytes_at(symbol.address, size))
            .unwrap_or_default()
    }

    /// The instructions of a function.
    pub fn instructions(&self, symbol: &Symbol) -> Boundaries<'_> {
        boundaries(self.function_bytes(symbol), symbol.address)
    }
}
