//! The symbol table: 24 bytes per symbol, the names in one string.

use std::sync::Arc;

use address::Gva;

use super::{Symbol, SymbolOffset, glob_matches, rank, suggest};

/// The module index of the kernel's own symbols.
pub(super) const KERNEL: u16 = u16::MAX;

/// The lowest kernel address. Addresses from here on move with the kernel; lower addresses are
/// per-CPU offsets and constants.
const KERNEL_HALF: u64 = 1 << 63;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) name_start: u32,
    pub(super) name_len: u16,
    pub(super) module: u16,
    pub(super) kind: u8,
}

impl Entry {
    pub(super) fn name<'n>(&self, names: &'n str) -> &'n str {
        &names[self.name_range()]
    }

    pub(super) const fn name_range(&self) -> std::ops::Range<usize> {
        let start = self.name_start as usize;
        start..start + self.name_len as usize
    }
}

/// All known symbols, by address and by name. Read-only; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SymbolTable {
    /// By address; at one address the symbol to show comes first.
    entries: Arc<[Entry]>,
    /// Indices into `entries`, by name; of one name, the result of a lookup comes first.
    by_name: Arc<[u32]>,
    names: Arc<str>,
    modules: Arc<[Arc<str>]>,
}

impl SymbolTable {
    /// Makes a table of `entries`, sorted like the field `entries`.
    pub(super) fn from_sorted(
        entries: Vec<Entry>,
        names: Arc<str>,
        modules: Arc<[Arc<str>]>,
    ) -> Self {
        let by_name = by_name(&entries, &names);
        Self {
            entries: entries.into(),
            by_name,
            names,
            modules,
        }
    }

    /// The number of symbols, aliases included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table has no symbols.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The symbol called `name`. Of several, text goes before data, global before local, low before
    /// high; [`lookup_all`](Self::lookup_all) returns all of them.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Option<Symbol> {
        self.named(name)
            .first()
            .map(|&index| self.symbol(index as usize))
    }

    /// Just the address of [`lookup`](Self::lookup)'s symbol.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<Gva> {
        self.named(name)
            .first()
            .map(|&index| Gva(self.entries[index as usize].address))
    }

    /// All symbols called `name`, the result of [`lookup`](Self::lookup) first. Static functions of
    /// different files may share a name.
    #[must_use]
    pub fn lookup_all(&self, name: &str) -> Vec<Symbol> {
        self.named(name)
            .iter()
            .map(|&index| self.symbol(index as usize))
            .collect()
    }

    /// The symbol that holds `address`, and the offset in the symbol. If several symbols begin at
    /// the same address, the result is always the same, the most readable. `None` below the first
    /// symbol, past the last, and in the per-CPU offsets.
    #[must_use]
    pub fn resolve(&self, address: Gva) -> Option<SymbolOffset> {
        let after = self
            .entries
            .partition_point(|entry| entry.address <= address.0);
        let start = self.entries[..after].last()?.address;
        let first = self.entries[..after].partition_point(|entry| entry.address < start);
        if rank::is_absolute(self.entries[first].kind) {
            return None;
        }
        let symbol = self.symbol(first);
        let offset = address.offset_from(symbol.address)?;
        (offset == 0 || offset < symbol.size).then_some(SymbolOffset { symbol, offset })
    }

    /// The symbols with names matching a pattern of `*`, `?` and `[a-z]`, in address order.
    pub fn matching<'t>(&'t self, pattern: &'t str) -> impl Iterator<Item = Symbol> + 't {
        (0..self.entries.len())
            .filter(move |&index| glob_matches(pattern, self.entries[index].name(&self.names)))
            .map(|index| self.symbol(index))
    }

    /// At most `n` names similar to a mistyped `name`, the likeliest first.
    #[must_use]
    pub fn nearest_names(&self, name: &str, n: usize) -> Vec<String> {
        let names = self.by_name.iter().map(|&index| {
            let entry = &self.entries[index as usize];
            (entry.name(&self.names), rank::is_text(entry.kind))
        });
        suggest::nearest(name, names, n)
    }

    /// The same symbols after the kernel has moved by `slide` bytes. Per-CPU offsets and absolute
    /// numbers, in the lower half, stay. The symbols of modules stay too: they were found at
    /// run-time addresses.
    #[must_use]
    pub fn rebased(&self, slide: i64) -> Self {
        let moved = |entry: &Entry| {
            let moves = entry.address >= KERNEL_HALF && entry.module == KERNEL;
            let address = if moves {
                entry.address.wrapping_add_signed(slide)
            } else {
                entry.address
            };
            Entry { address, ..*entry }
        };
        let mut entries: Vec<Entry> = self.entries.iter().map(moved).collect();
        if entries.is_sorted_by_key(|entry| entry.address) {
            return Self {
                entries: entries.into(),
                ..self.clone()
            };
        }
        // A stable sort keeps the order of aliases.
        entries.sort_by_key(|entry| entry.address);
        Self::from_sorted(entries, Arc::clone(&self.names), Arc::clone(&self.modules))
    }

    /// The same symbols, with text symbols outside `is_code` made data. The letters come from the
    /// flags of the symbol's section, and some kernels have an executable `.data`.
    pub(crate) fn with_text_only_in(self, is_code: impl Fn(Gva) -> bool) -> Self {
        let wrong = |entry: &Entry| rank::is_text(entry.kind) && !is_code(Gva(entry.address));
        if !self.entries.iter().any(wrong) {
            return self;
        }
        let mut entries = self.entries.to_vec();
        for entry in entries.iter_mut().filter(|entry| wrong(entry)) {
            entry.kind = if entry.kind.is_ascii_uppercase() {
                b'D'
            } else {
                b'd'
            };
        }
        // The order at an address depends on no letter that has changed; the order of one name does.
        let mut by_name = self.by_name.to_vec();
        let name = |&index: &u32| entries[index as usize].name(&self.names);
        for shared in by_name.chunk_by_mut(|left, right| name(left) == name(right)) {
            shared.sort_unstable_by_key(|&index| for_lookup(&entries, index));
        }
        Self {
            entries: entries.into(),
            by_name: by_name.into(),
            ..self
        }
    }

    /// All symbols in address order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Symbol> + '_ {
        (0..self.entries.len()).map(|index| self.symbol(index))
    }

    fn named(&self, name: &str) -> &[u32] {
        let name_at = |&index: &u32| self.entries[index as usize].name(&self.names);
        let start = self.by_name.partition_point(|index| name_at(index) < name);
        let len = self.by_name[start..].partition_point(|index| name_at(index) == name);
        &self.by_name[start..start + len]
    }

    fn symbol(&self, index: usize) -> Symbol {
        let entry = &self.entries[index];
        Symbol {
            address: Gva(entry.address),
            size: self.size(index),
            kind: char::from(entry.kind),
            name: entry.name(&self.names).to_owned(),
            module: self.modules.get(usize::from(entry.module)).cloned(),
        }
    }

    /// Bytes to the next address with a symbol; 0 for the last, also for the last of the lower
    /// half.
    fn size(&self, index: usize) -> u64 {
        let address = self.entries[index].address;
        let rest = &self.entries[index..];
        let behind = rest.partition_point(|entry| entry.address == address);
        rest.get(behind).map_or(0, |next| {
            let crosses = next.address >= KERNEL_HALF && address < KERNEL_HALF;
            if crosses { 0 } else { next.address - address }
        })
    }
}

/// Indices into `entries`, by name; of one name, the result of a lookup comes first.
fn by_name(entries: &[Entry], names: &str) -> Arc<[u32]> {
    let indices = (0..entries.len()).filter_map(|index| u32::try_from(index).ok());
    let mut ordered: Vec<(u128, u32)> = indices
        .map(|index| (beginning(entries[index as usize].name(names)), index))
        .collect();
    // Most pairs differ in their beginnings: then their names, which lie all over memory, are not read.
    ordered.sort_unstable_by(|&(left_beginning, left), &(right_beginning, right)| {
        let name = |index: u32| entries[index as usize].name(names);
        left_beginning
            .cmp(&right_beginning)
            .then_with(|| name(left).cmp(name(right)))
            .then_with(|| for_lookup(entries, left).cmp(&for_lookup(entries, right)))
    });
    ordered.into_iter().map(|(_, index)| index).collect()
}

/// The first bytes of `name` as a number, in the order of the names.
fn beginning(name: &str) -> u128 {
    let mut bytes = [0; size_of::<u128>()];
    let len = name.len().min(bytes.len());
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    u128::from_be_bytes(bytes)
}

/// Orders the entries with one name: the least is the result of a lookup.
fn for_lookup(entries: &[Entry], index: u32) -> ((bool, bool), u32) {
    (rank::for_lookup(entries[index as usize].kind), index)
}
