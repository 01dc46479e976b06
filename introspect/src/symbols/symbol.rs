//! A symbol, and an address relative to a symbol.

use std::{fmt, sync::Arc};

use address::Gva;

/// A named address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The address of the first byte.
    pub address: Gva,
    /// Bytes to the next symbol at a higher address, padding included; 0 if unknown.
    pub size: u64,
    /// The type letter of nm(1): `T` global text, `t` local text, `D`, `d`, `B`, `R`, `A` absolute,
    /// and others.
    pub kind: char,
    /// The name, without a module.
    pub name: String,
    /// The symbol's module; `None` for the kernel proper.
    pub module: Option<Arc<str>>,
}

impl Symbol {
    /// Whether the symbol names code.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        matches!(self.kind, 'T' | 't' | 'W' | 'w')
    }

    /// The first address behind the symbol; `None` if the size is unknown.
    #[must_use]
    pub fn end(&self) -> Option<Gva> {
        if self.size == 0 {
            None
        } else {
            self.address.checked_add(self.size)
        }
    }
}

/// Prints the name alone, with the module as the kernel prints it: `nf_hook [nf_tables]`.
impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}

/// An address as a symbol and a distance from the symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolOffset {
    /// The symbol at or below the address.
    pub symbol: Symbol,
    /// Bytes from the symbol to the address.
    pub offset: u64,
}

/// Prints `vfs_read`, `vfs_read+0x5` or `nf_hook+0x5 [nf_tables]`.
impl fmt::Display for SymbolOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.symbol.name)?;
        if self.offset != 0 {
            write!(f, "+{:#x}", self.offset)?;
        }
        match &self.symbol.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}
