//! What is known of the guest's kernel before it runs: its file, its names, the places it patches itself.

use introspect::insn::{Boundaries, boundaries};
use introspect::{
    Gpa, Gva, ImageError, KernelImage, KernelLayout, PatchSites, Symbol, SymbolTable, kallsyms,
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

/// The kernel at its link-time addresses.
#[derive(Debug)]
pub struct Kernel {
    image: KernelImage,
    symbols: SymbolTable,
    sites: PatchSites,
    layout: Option<KernelLayout>,
}

/// No function is swept beyond this many bytes.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;

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

    /// Whether a direct branch within the function `symbol` may go into `range`; `true` when its code cannot be
    /// followed to the end.
    #[must_use]
    pub fn may_branch_into(&self, symbol: &Symbol, range: &std::ops::Range<Gva>) -> bool {
        !matches!(
            introspect::insn::branch_into(self.function_bytes(symbol), symbol.address, range),
            Ok(None)
        )
    }
}
