//! `struct alt_instr`, which has had three layouts without a version field.

use address::Gva;

use super::{
    PatchKind, PatchSite,
    tables::{Table, Tables},
};

/// A range of code, and the possible replacement at boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alternative {
    pub(super) site: PatchSite,
    pub(super) replacement: Gva,
    pub(super) replacement_len: u8,
}

/// The layout of an entry. Every layout begins with the distances to the instruction and to the
/// replacement.
#[derive(Clone, Copy)]
struct Layout {
    stride: usize,
    /// The offset of the one-byte length of the patched range; the replacement's length follows.
    len_at: usize,
}

const LAYOUTS: [Layout; 3] = [
    // From 6.3 on: a 32-bit field with feature and flags.
    Layout {
        stride: 14,
        len_at: 12,
    },
    // From 5.13 on, and in kernels with the retbleed fixes.
    Layout {
        stride: 12,
        len_at: 10,
    },
    // Before: with the length of the padding at the end.
    Layout {
        stride: 13,
        len_at: 10,
    },
];

/// The least number of entries patching code with code, of 100.
const MIN_PLAUSIBLE_PERCENT: usize = 90;

/// The alternatives, read by the first plausible layout.
pub(super) fn read(tables: &Tables<'_>) -> Vec<Alternative> {
    let table = tables.between("__alt_instructions", "__alt_instructions_end");
    let readings = LAYOUTS
        .iter()
        .filter_map(|layout| read_as(tables, &table, *layout));
    readings.max_by_key(Vec::len).unwrap_or_default()
}

fn read_as(tables: &Tables<'_>, table: &Table, layout: Layout) -> Option<Vec<Alternative>> {
    if !table.len().is_multiple_of(layout.stride) {
        return None;
    }
    let count = table.len() / layout.stride;
    let site = |at: usize| {
        let (address, replacement) = (table.relative(at)?, table.relative(at + 4)?);
        let len = table.u8(at + layout.len_at)?;
        let replacement_len = table.u8(at + layout.len_at + 1)?;
        let plausible = tables.holds_code(address) && tables.holds_code(replacement) && len > 0;
        plausible.then_some(Alternative {
            site: PatchSite {
                address,
                len,
                kind: PatchKind::Alternative,
                target: None,
            },
            replacement,
            replacement_len,
        })
    };
    let sites: Vec<Alternative> = table
        .entries(layout.stride, layout.stride)
        .filter_map(site)
        .collect();
    (sites.len() * 100 >= count * MIN_PLAUSIBLE_PERCENT).then_some(sites)
}
