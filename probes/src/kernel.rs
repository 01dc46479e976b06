//! What is known of the guest's kernel before it runs: its file, its names, the places it patches itself.

use std::ops::Range;
use std::sync::OnceLock;

use introspect::insn::{Boundaries, boundaries};
use introspect::optimise::Survey;
use introspect::{
    Btf, BtfError, Gpa, Gva, ImageError, KernelImage, KernelLayout, ModuleEvent, Modules,
    ModulesError, OptimisedLayout, PatchSites, PerCpu, Symbol, SymbolTable, TaskLayout, kallsyms,
};

/// The kernel's file could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// It is no kernel.
    #[error("cannot read the kernel's ELF file")]
    Image(#[from] ImageError),
    /// It has no names.
    #[error(
        "the kernel has no symbols that hyprobe can read (neither an ELF symbol table nor kallsyms)"
    )]
    Symbols(#[from] kallsyms::KallsymsError),
}

/// Why the modules of a kernel cannot be probed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ModulesUnknown {
    /// It does not say how it describes them.
    #[error("the kernel has no type information (BTF): {0}")]
    Types(#[from] BtfError),
    /// What it says is not enough.
    #[error(transparent)]
    Layout(#[from] ModulesError),
    /// What a module's coming and going is told by is not there.
    #[error("the kernel has no function `{function}`")]
    NoEvent {
        /// Its name.
        function: &'static str,
    },
}

/// The kernel at its link-time addresses. A clone knows what the original has found out so far.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: KernelImage,
    symbols: SymbolTable,
    sites: PatchSites,
    layout: Option<KernelLayout>,
    modules: OnceLock<Result<Modules, ModulesUnknown>>,
    optimised_kprobes: OnceLock<Option<OptimisedLayout>>,
    tasks: OnceLock<Option<TaskLayout>>,
    processors: OnceLock<Processors>,
    survey: OnceLock<Survey>,
    entry: OnceLock<Option<Range<Gva>>>,
}

/// What the kernel keeps of each processor that programs can look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processors {
    /// The task that it runs.
    pub(crate) task: Option<PerCpu>,
    /// Its number.
    pub(crate) number: Option<PerCpu>,
}

/// No function is swept beyond this many bytes.
pub(crate) const MAX_FUNCTION_BYTES: u64 = 1 << 20;

impl Kernel {
    /// Reads what there is to know from a decompressed kernel.
    ///
    /// # Errors
    ///
    /// When it is not an ELF kernel, or has no symbols.
    pub fn from_vmlinux(vmlinux: &[u8]) -> Result<Self, KernelError> {
        let image = KernelImage::parse(vmlinux)?;
        let symbols = kallsyms::from_image(&image)?;
        let sites = PatchSites::read(&image, &symbols);
        let layout = KernelLayout::from_symbols(&symbols);
        Ok(Self {
            image,
            symbols,
            sites,
            layout,
            modules: OnceLock::new(),
            optimised_kprobes: OnceLock::new(),
            tasks: OnceLock::new(),
            processors: OnceLock::new(),
            survey: OnceLock::new(),
            entry: OnceLock::new(),
        })
    }

    /// Its symbols.
    #[must_use]
    pub fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    /// The places that it patches itself.
    #[must_use]
    pub fn sites(&self) -> &PatchSites {
        &self.sites
    }

    /// How it describes its modules. Found out when it is first asked for.
    ///
    /// # Errors
    ///
    /// When it does not say, or has none.
    pub fn modules(&self) -> Result<&Modules, &ModulesUnknown> {
        self.modules
            .get_or_init(|| {
                for event in ModuleEvent::ALL {
                    let function = event.function();
                    if self.symbols.lookup(function).is_none() {
                        return Err(ModulesUnknown::NoEvent { function });
                    }
                }
                let types = Btf::from_image(&self.image, &self.symbols)?;
                Ok(Modules::new(&types)?)
            })
            .as_ref()
    }

    /// How its own kprobes describe the jumps that they put into the text; `None` if it does not say, or has none. Found
    /// out when it is first asked for.
    pub(crate) fn optimised_kprobes(&self) -> Option<OptimisedLayout> {
        *self.optimised_kprobes.get_or_init(|| {
            let types = Btf::from_image(&self.image, &self.symbols).ok()?;
            OptimisedLayout::from_btf(&types)
        })
    }

    /// Where it keeps what programs can look at. Found out when it is first asked for.
    pub(crate) fn processors(&self) -> Processors {
        *self.processors.get_or_init(|| {
            let types = Btf::from_image(&self.image, &self.symbols).ok();
            Processors {
                task: PerCpu::current_task(types.as_ref(), &self.symbols),
                number: PerCpu::cpu_number(types.as_ref(), &self.symbols),
            }
        })
    }

    /// Where it keeps the task that a processor runs; `None` if it does not say. Found out when it is first asked for.
    #[must_use]
    pub fn tasks(&self) -> Option<TaskLayout> {
        *self.tasks.get_or_init(|| {
            let types = Btf::from_image(&self.image, &self.symbols).ok()?;
            TaskLayout::new(&types, &self.symbols)
        })
    }

    /// What tells whether a jump can stand for a probe. Found out when it is first asked for, which takes a second or
    /// less: not with the guest paused.
    #[must_use]
    pub fn survey(&self) -> &Survey {
        self.survey
            .get_or_init(|| Survey::of_kernel(&self.image, &self.symbols))
    }

    /// As if its types said so.
    #[cfg(test)]
    pub(crate) fn describe_kprobes(&self, layout: OptimisedLayout) {
        self.optimised_kprobes.get_or_init(|| Some(layout));
    }

    /// Its version line.
    #[must_use]
    pub fn banner(&self) -> Option<&str> {
        self.image.banner()
    }

    /// Whether `address` is code. Without section labels, whether the file holds anything there.
    #[must_use]
    pub fn holds_code(&self, address: Gva) -> bool {
        match &self.layout {
            Some(layout) => layout.holds_code(address),
            None => self.image.bytes_at(address, 1).is_some(),
        }
    }

    /// The text that stays, if the kernel says where it is.
    #[must_use]
    pub fn text(&self) -> Option<std::ops::Range<Gva>> {
        self.layout.as_ref().map(|layout| layout.text.clone())
    }

    /// Where the image is linked, from its first byte to its last.
    #[must_use]
    pub fn image(&self) -> std::ops::Range<Gva> {
        self.image.virtual_range()
    }

    /// Whether `address` is in the code by which the kernel is entered and left, which may run on the page tables and
    /// the stack of a program.
    #[must_use]
    pub fn is_entry(&self, address: Gva) -> bool {
        let entry = self.entry.get_or_init(|| {
            let label = |name| self.symbols.address_of(name);
            Some(label("__entry_text_start")?..label("__entry_text_end")?)
        });
        entry.as_ref().is_some_and(|entry| entry.contains(&address))
    }

    /// Whether what lies at `address` is freed after boot.
    #[must_use]
    pub fn is_init(&self, address: Gva) -> bool {
        self.layout
            .as_ref()
            .is_some_and(|layout| layout.is_init(address))
    }

    /// Where `address` lies in guest-physical memory, for a kernel that was loaded where it was linked.
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
