//! Tables of targets of indirect jumps.
//!
//! For `switch`, compilers make tables of addresses, and tables of distances from the table. A
//! search of the whole image finds stored addresses, for any user of the table. Distances need the
//! address of the table.

use std::ops::Range;

use address::Gva;

use crate::ImageSource;

/// The upper bytes of a kernel address stored as data.
const UPPER_HALF: u32 = u32::MAX;
const ENTRY_BYTES: usize = 4;
const PIECE_BYTES: usize = 256;

/// The addresses of code stored in `bytes`, aligned to 4 bytes.
pub(super) fn stored_addresses<'b>(
    bytes: &'b [u8],
    code: &'b [Range<Gva>],
) -> impl Iterator<Item = Gva> + 'b {
    let mut lower = 0;
    bytes.chunks_exact(4).filter_map(move |word| {
        let upper = u32::from_le_bytes(word.try_into().ok()?);
        let low = std::mem::replace(&mut lower, upper);
        if upper != UPPER_HALF {
            return None;
        }
        let address = Gva(u64::from(upper) << 32 | u64::from(low));
        code.iter()
            .any(|range| range.contains(&address))
            .then_some(address)
    })
}

/// The targets of the distances at `table`, counted from the table, up to the first target outside
/// `function`; at most `most`.
pub(super) fn relative_targets(
    source: &dyn ImageSource,
    table: Gva,
    function: &Range<Gva>,
    most: usize,
) -> Vec<Gva> {
    let mut targets = Vec::new();
    let mut piece = [0; PIECE_BYTES];
    while targets.len() < most {
        let at = table.wrapping_add((targets.len() * ENTRY_BYTES) as u64);
        // Behind the last entries of a section, less than a piece may follow.
        let len = [PIECE_BYTES, ENTRY_BYTES]
            .into_iter()
            .find(|&len| source.read_linked(at, &mut piece[..len]).is_ok());
        let Some(len) = len else { break };
        for entry in piece[..len].chunks_exact(ENTRY_BYTES) {
            let Ok(entry) = entry.try_into() else {
                return targets;
            };
            let distance = i64::from(i32::from_le_bytes(entry));
            let target = table.wrapping_add(distance.cast_unsigned());
            if !function.contains(&target) || targets.len() == most {
                return targets;
            }
            targets.push(target);
        }
    }
    targets
}
