//! The table of jump labels, of the kernel or of a module.

use std::collections::BTreeMap;
use std::sync::Arc;

use address::Gva;

use crate::image::ImageReader;

/// An entry of the table: two distances of 32 bits, and one of 64.
pub(super) const ENTRY_BYTES: u64 = 16;
const KEY_OFFSET: u64 = 8;
/// The lowest bits of the distance to a key are flags.
const KEY_FLAGS: u64 = 3;

/// Where the kernel passes a tracepoint, at link-time addresses if in the kernel proper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TracepointSite {
    /// The jump label.
    pub at: Gva,
    /// The code that the jump label jumps to while the tracepoint is on.
    pub block: Gva,
}

/// The jump labels of each key.
pub(super) type Labels = BTreeMap<Gva, Arc<[TracepointSite]>>;

/// The `count` entries of the table at `start`, by their keys, in the order of their addresses.
pub(super) fn labels(image: ImageReader<'_>, start: Gva, count: u64) -> Labels {
    let mut labels: BTreeMap<Gva, Vec<TracepointSite>> = BTreeMap::new();
    for number in 0..count {
        let entry = start.wrapping_add(number * ENTRY_BYTES);
        if let Some((key, site)) = label(image, entry) {
            labels.entry(key).or_default().push(site);
        }
    }
    let in_order = |(key, mut sites): (Gva, Vec<TracepointSite>)| {
        sites.sort_unstable();
        (key, sites.into())
    };
    labels.into_iter().map(in_order).collect()
}

fn label(image: ImageReader<'_>, entry: Gva) -> Option<(Gva, TracepointSite)> {
    let at = entry.wrapping_add(KEY_OFFSET);
    let distance = u64::from_le_bytes(image.bytes(at)?);
    let site = TracepointSite {
        at: near(image, entry)?,
        block: near(image, entry.wrapping_add(4))?,
    };
    Some((at.wrapping_add(distance & !KEY_FLAGS), site))
}

/// The address at the distance of 32 bits that is stored at `at`.
pub(super) fn near(image: ImageReader<'_>, at: Gva) -> Option<Gva> {
    let distance = i32::from_le_bytes(image.bytes(at)?);
    Some(Gva(at.0.wrapping_add_signed(distance.into())))
}
