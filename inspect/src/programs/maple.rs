//! Look-up in a maple tree, in which the kernel keeps the mappings of a program since 6.1.
//!
//! A node has pivots, the last indices of its slots, in rising order. The low byte of a link has the type of the node (`lib/maple_tree.c`).

use std::ops::Range;

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// Trees of a full address space have 5 levels.
const MAX_LEVELS: usize = 16;
/// A node has 256 bytes.
const MAX_NODE_BYTES: u64 = 256;
/// `MAPLE_NODE_MASK`: nodes are aligned to their size.
const LINK_BITS: u64 = 0xff;
/// `MAPLE_NODE_TYPE_SHIFT`, `MAPLE_NODE_TYPE_MASK`.
const TYPE_SHIFT: u32 = 3;
const TYPE_MASK: u64 = 0xf;
/// An entry that is no pointer of the tree's user has 2 in the lowest bits (`xa_is_internal`); below this, it is a mark and no node.
const INTERNAL: u64 = 2;
const MAX_MARK: u64 = 4096;
/// `enum maple_type`.
const LEAF: u64 = 1;
const RANGE: u64 = 2;
const GAPS: u64 = 3;

/// The members of the nodes.
#[derive(Debug)]
pub(super) struct MapleLayout {
    /// `ma_root`, in the struct that embeds the tree.
    root: Slot,
    range: NodeLayout,
    gaps: NodeLayout,
}

#[derive(Debug)]
struct NodeLayout {
    pivots: Range<usize>,
    slots: Range<usize>,
}

impl NodeLayout {
    fn new(btf: &Btf, name: &'static str) -> Result<Self, NoType> {
        let node = StructType::named(btf, name)?;
        Ok(Self {
            pivots: node.bytes("pivot", MAX_NODE_BYTES)?,
            slots: node.bytes("slot", MAX_NODE_BYTES)?,
        })
    }

    /// The slot for `index`, and its last index; `None` if that is the node's. The slot is the first whose pivot is not below, or the one
    /// behind all pivots. A pivot of 0 behind the first slot stands for the node's last index (`mas_logical_pivot`).
    fn slot(
        &self,
        reads: &Reads<'_>,
        node: Gva,
        index: u64,
    ) -> Result<(u64, Option<u64>), ReadsError> {
        let len = self.pivots.end.max(self.slots.end);
        let bytes = reads.bytes(node, len)?;
        let (pivots, _) = bytes[self.pivots.clone()].as_chunks::<8>();
        let (slots, _) = bytes[self.slots.clone()].as_chunks::<8>();
        let mut pivots = pivots.iter().map(|pivot| u64::from_le_bytes(*pivot));
        let most = pivots.len();
        let is_chosen =
            |(number, pivot): &(usize, u64)| *pivot >= index || (*number > 0 && *pivot == 0);
        let chosen = pivots.by_ref().enumerate().find(is_chosen);
        let slot = slots.get(chosen.map_or(most, |(number, _)| number));
        let last = chosen.map(|(_, pivot)| pivot);
        let slot = slot.map_or(0, |slot| u64::from_le_bytes(*slot));
        Ok((slot, last.filter(|last| *last >= index)))
    }
}

impl MapleLayout {
    /// The tree at `root` (`ma_root`) of its owner.
    pub(super) fn new(btf: &Btf, root: Slot) -> Result<Self, NoType> {
        Ok(Self {
            root,
            range: NodeLayout::new(btf, "maple_range_64")?,
            gaps: NodeLayout::new(btf, "maple_arange_64")?,
        })
    }

    /// The entry for `index` in the tree of `owner`.
    pub(super) fn entry(
        &self,
        reads: &Reads<'_>,
        owner: Gva,
        index: u64,
    ) -> Result<Option<Gva>, ReadsError> {
        Ok(self.range(reads, owner, index)?.0)
    }

    /// The entry for `index` in the tree of `owner`, and the last index of the range with this entry, or without one.
    pub(super) fn range(
        &self,
        reads: &Reads<'_>,
        owner: Gva,
        index: u64,
    ) -> Result<(Option<Gva>, u64), ReadsError> {
        const NONE: (Option<Gva>, u64) = (None, u64::MAX);
        let mut last = u64::MAX;
        let is_internal = |entry: u64| entry & 3 == INTERNAL;
        let mut link = reads.number(owner, self.root)?;
        // A tree with one entry at 0 has no node.
        if !is_internal(link) {
            return Ok(NONE);
        }
        for _ in 0..MAX_LEVELS {
            if link <= MAX_MARK {
                return Ok(NONE);
            }
            let node = Gva(link & !LINK_BITS);
            let kind = link >> TYPE_SHIFT & TYPE_MASK;
            let layout = match kind {
                LEAF | RANGE => &self.range,
                GAPS => &self.gaps,
                _ => return Ok(NONE),
            };
            let (slot, own) = layout.slot(reads, node, index)?;
            link = slot;
            last = own.unwrap_or(last).min(last);
            if kind == LEAF {
                let is_entry = link != 0 && !is_internal(link);
                return Ok((is_entry.then_some(Gva(link)), last));
            }
        }
        Ok(NONE)
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::StructId;
    use introspect::btf::synthetic::Blob;

    use super::*;
    use crate::fake::{Fake, at};

    const OWNER: u64 = 0x100;
    const TOP: u64 = 0x400;
    const LEAF_AT: u64 = 0x500;

    fn types() -> Blob {
        let mut blob = Blob::new();
        let long = blob.int("unsigned long", 8);
        let pivots = blob.array(long, 15);
        let slots = blob.array(long, 16);
        blob.structure(
            "maple_range_64",
            256,
            &[("pivot", pivots, 8), ("slot", slots, 128)],
        );
        let pivots = blob.array(long, 9);
        let slots = blob.array(long, 10);
        blob.structure(
            "maple_arange_64",
            256,
            &[("pivot", pivots, 8), ("slot", slots, 80)],
        );
        blob.structure("mm_struct", 16, &[("ma_root", long, 8)]);
        blob
    }

    fn link(node: u64, kind: u64) -> u64 {
        at(node).0 | kind << TYPE_SHIFT | 4
    }

    fn kernel() -> Fake {
        let mut fake = Fake::new(types(), 0x1000, &[]);
        fake.put64(OWNER + 8, link(TOP, GAPS) | INTERNAL);
        // Up to 0xfff: nothing; up to 0x8fff: the leaf; behind the pivots: nothing.
        fake.put64(TOP + 8, 0xfff);
        fake.put64(TOP + 16, 0x8fff);
        fake.put64(TOP + 80 + 8, link(LEAF_AT, LEAF));
        fake.put64(LEAF_AT + 8, 0x1fff);
        fake.put64(LEAF_AT + 16, 0x2fff);
        fake.put64(LEAF_AT + 24, 0x8fff);
        fake.put64(LEAF_AT + 128, 0xffff_8880_0000_1000);
        fake.put64(LEAF_AT + 136, 0);
        fake.put64(LEAF_AT + 144, 0xffff_8880_0000_2000);
        fake
    }

    fn entry(fake: &Fake, index: u64) -> Option<u64> {
        let view = fake.view();
        let reads = Reads::new(&view, 1 << 20);
        let types = view.types().expect("types");
        let owner: StructId = types.struct_named("mm_struct").expect("a struct");
        let root = Slot::find(types, owner, "ma_root").expect("a slot");
        let layout = MapleLayout::new(types, root).expect("a layout");
        let entry = layout.entry(&reads, at(OWNER), index).expect("readable");
        entry.map(|entry| entry.0)
    }

    #[test]
    fn pivot_is_the_last_index_of_its_slot() {
        let fake = kernel();
        assert_eq!(entry(&fake, 0x1000), Some(0xffff_8880_0000_1000));
        assert_eq!(entry(&fake, 0x1fff), Some(0xffff_8880_0000_1000));
        assert_eq!(entry(&fake, 0x2000), None);
        assert_eq!(entry(&fake, 0x3000), Some(0xffff_8880_0000_2000));
        assert_eq!(entry(&fake, 0x8fff), Some(0xffff_8880_0000_2000));
        assert_eq!(entry(&fake, 0xfff), None);
        assert_eq!(entry(&fake, 0x9000), None);
    }

    #[test]
    fn false_trees_end() {
        let mut fake = kernel();
        // The leaf's place holds a link back to the top.
        fake.put64(TOP + 80 + 8, link(TOP, RANGE));
        fake.put64(TOP + 128 + 8, link(TOP, RANGE));
        assert_eq!(entry(&fake, 0x1000), None);
        fake.put64(OWNER + 8, 0xffff_8880_0000_1000);
        assert_eq!(entry(&fake, 0x1000), None);
        fake.put64(OWNER + 8, 0);
        assert_eq!(entry(&fake, 0x1000), None);
    }
}
