//! The kernel's exception table: the instructions with possible faults, and the addresses to
//! continue at.

use address::Gva;

use crate::{ImageSource, SymbolTable};

/// The distances to the instruction and to the continuation, and the further action. The layout
/// since 4.6.
const ENTRY_BYTES: usize = 12;
/// Today's kernels have some thousand entries.
const MAX_TABLE_BYTES: u64 = 4 << 20;

/// Instructions with possible faults, and the kernel's continuations after a fault.
#[derive(Clone, Debug, Default)]
pub(super) struct Exceptions {
    /// By address.
    pub(super) instructions: Vec<Gva>,
    /// In no order.
    pub(super) fixups: Vec<Gva>,
}

impl Exceptions {
    /// The table marked by `symbols` in `source`; `None` if the table is missing or unreadable.
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

    /// An instruction with an entry among the `len` bytes from `at` on.
    pub(super) fn within(&self, at: Gva, len: u64) -> Option<Gva> {
        let first = self.instructions.partition_point(|entry| *entry < at);
        let found = *self.instructions.get(first)?;
        (found.offset_from(at)? < len).then_some(found)
    }
}

/// The target of the distance at `offset` of an entry at `at`.
fn relative(entry: &[u8], at: Gva, offset: usize) -> Option<Gva> {
    let bytes = entry.get(offset..offset + 4)?.try_into().ok()?;
    let here = at.wrapping_add(offset as u64);
    let distance = i64::from(i32::from_le_bytes(bytes));
    Some(here.wrapping_add(distance.cast_unsigned()))
}
