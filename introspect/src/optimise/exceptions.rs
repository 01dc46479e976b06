//! The kernel's exception table: which instructions may fault, and where it then goes on.

use crate::{Gva, ImageSource, SymbolTable};

/// The distances to the instruction and to where it goes on, and what else to do. So since 4.6.
const ENTRY_BYTES: usize = 12;
/// Today's kernels have some thousand entries.
const MAX_TABLE_BYTES: u64 = 4 << 20;

/// Instructions that may fault, and where the kernel goes on if they do.
#[derive(Clone, Debug, Default)]
pub(super) struct Exceptions {
    /// By address.
    pub(super) instructions: Vec<Gva>,
    /// In no order.
    pub(super) fixups: Vec<Gva>,
}

impl Exceptions {
    /// The table that `symbols` mark in `source`; `None` where there is none that can be read.
    pub(super) fn read(source: &dyn ImageSource, symbols: &SymbolTable) -> Option<Self> {
        let start = symbols.address_of("__start___ex_table")?;
        let end = symbols.address_of("__stop___ex_table")?;
        let len = end
            .offset_from(start)
            .filter(|&len| len <= MAX_TABLE_BYTES)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        source.read_linked(start, &mut bytes).ok()?;
        Some(Self::parse(&bytes, start))
    }

    /// The table in `bytes`, which lie at `start`.
    fn parse(bytes: &[u8], start: Gva) -> Self {
        let mut found = Self::default();
        for (number, entry) in bytes.chunks_exact(ENTRY_BYTES).enumerate() {
            let at = start.wrapping_add((number * ENTRY_BYTES) as u64);
            found.instructions.extend(relative(entry, at, 0));
            found.fixups.extend(relative(entry, at, 4));
        }
        found.instructions.sort_unstable();
        found
    }

    /// An instruction among the `len` bytes from `at` on that has an entry.
    pub(super) fn within(&self, at: Gva, len: u64) -> Option<Gva> {
        let first = self.instructions.partition_point(|entry| *entry < at);
        let found = *self.instructions.get(first)?;
        (found.offset_from(at)? < len).then_some(found)
    }
}

/// What the distance stored at `offset` of an entry at `at` points to.
fn relative(entry: &[u8], at: Gva, offset: usize) -> Option<Gva> {
    let bytes = entry.get(offset..offset + 4)?.try_into().ok()?;
    let here = at.wrapping_add(offset as u64);
    let distance = i64::from(i32::from_le_bytes(bytes));
    Some(here.wrapping_add(distance.cast_unsigned()))
}
