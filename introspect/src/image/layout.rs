//! Which of the kernel's addresses are text, and which are gone after boot.

use std::ops::Range;

use address::Gva;

use crate::SymbolTable;

/// The sections of the kernel that matter to probes, at the addresses of the symbol table they come
/// from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// `_text` (or `_stext`) to `_etext`: code never freed.
    pub text: Range<Gva>,
    /// `__init_begin` to `__init_end`: code and data freed by the kernel after boot.
    pub init: Option<Range<Gva>>,
}

impl KernelLayout {
    /// The layout from the linker's labels in `symbols`; `None` if no labels mark the text.
    #[must_use]
    pub fn from_symbols(symbols: &SymbolTable) -> Option<Self> {
        let text = range(symbols, &["_text", "_stext"], "_etext")?;
        Some(Self {
            text,
            init: range(symbols, &["__init_begin"], "__init_end"),
        })
    }

    /// Whether `address` can hold code: in the kernel's text, or in the init section, which the
    /// kernel frees after boot.
    #[must_use]
    pub fn holds_code(&self, address: Gva) -> bool {
        self.text.contains(&address) || self.is_init(address)
    }

    /// Whether the kernel frees `address` after boot.
    #[must_use]
    pub fn is_init(&self, address: Gva) -> bool {
        self.init
            .as_ref()
            .is_some_and(|init| init.contains(&address))
    }
}

fn range(symbols: &SymbolTable, starts: &[&str], end: &str) -> Option<Range<Gva>> {
    let end = symbols.address_of(end)?;
    let start = starts.iter().find_map(|start| symbols.address_of(start))?;
    (start < end).then_some(start..end)
}
