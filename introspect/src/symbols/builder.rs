//! Gathers symbols in any order and makes a table of them.

use std::sync::Arc;

use address::Gva;

use super::{
    SymbolTable, rank,
    table::{Entry, KERNEL},
};

/// More symbols than any kernel has; further symbols are hostile or damaged, and dropped.
const MAX_SYMBOLS: usize = 4_000_000;
/// Bytes of all names together.
const MAX_NAME_BYTES: usize = 256 << 20;
/// The kernel's own limit, KSYM_NAME_LEN, is 512.
const MAX_NAME_LEN: usize = 1024;
const MAX_MODULES: usize = 4096;

/// Gathers symbols for a [`SymbolTable`].
///
/// Bounded: symbols beyond the limits are dropped, and [`push`](Self::push) returns `false`.
#[derive(Clone, Debug, Default)]
pub struct SymbolTableBuilder {
    names: String,
    modules: Vec<Arc<str>>,
    entries: Vec<Entry>,
}

impl SymbolTableBuilder {
    /// A builder without symbols.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a symbol of the kernel proper; `kind` is nm's letter. Returns `false` if the symbol is
    /// dropped: an empty or overlong name, a letter outside ASCII, or too many symbols.
    pub fn push(&mut self, address: Gva, kind: char, name: &str) -> bool {
        self.push_entry(address, kind, name, KERNEL)
    }

    /// Adds a symbol of `module`; returns `false` if the symbol is dropped, as in
    /// [`push`](Self::push).
    pub fn push_module(&mut self, module: &str, address: Gva, kind: char, name: &str) -> bool {
        let known = self.modules.iter().rposition(|known| &**known == module);
        let index = match known {
            Some(index) => index,
            None if self.modules.len() >= MAX_MODULES || module.len() > MAX_NAME_LEN => {
                return false;
            }
            None => {
                self.modules.push(module.into());
                self.modules.len() - 1
            }
        };
        u16::try_from(index).is_ok_and(|index| self.push_entry(address, kind, name, index))
    }

    /// Adds all of `table`: the kernel's symbols, say, before a module's are pushed.
    pub fn extend(&mut self, table: &SymbolTable) {
        for symbol in table.iter() {
            match &symbol.module {
                Some(module) => self.push_module(module, symbol.address, symbol.kind, &symbol.name),
                None => self.push(symbol.address, symbol.kind, &symbol.name),
            };
        }
    }

    /// The number of symbols gathered so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the builder has no symbols.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sorts and indexes the gathered symbols.
    #[must_use]
    pub fn build(self) -> SymbolTable {
        let Self {
            names,
            modules,
            mut entries,
        } = self;
        // A kernel's symbols come nearly in the order of their addresses, so few pairs need their names.
        let shown = |entry: &Entry| {
            let name = entry.name(&names);
            (rank::for_display(entry.kind, name), name)
        };
        entries.sort_by(|left, right| {
            let addresses = left.address.cmp(&right.address);
            addresses.then_with(|| shown(left).cmp(&shown(right)))
        });
        SymbolTable::from_sorted(entries, names.into(), modules.into())
    }

    fn push_entry(&mut self, address: Gva, kind: char, name: &str, module: u16) -> bool {
        let fits =
            self.entries.len() < MAX_SYMBOLS && self.names.len() + name.len() <= MAX_NAME_BYTES;
        if !fits || name.is_empty() || name.len() > MAX_NAME_LEN || !kind.is_ascii_graphic() {
            return false;
        }
        let (Ok(start), Ok(len), Ok(kind)) = (
            u32::try_from(self.names.len()),
            u16::try_from(name.len()),
            u8::try_from(kind),
        ) else {
            return false;
        };
        self.names.push_str(name);
        self.entries.push(Entry {
            address: address.0,
            name_start: start,
            name_len: len,
            module,
            kind,
        });
        true
    }
}
