//! Look-up in the red-black tree of a program's mappings, up to 6.0.

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// A tree of 65 530 mappings, the kernel's limit, has 32 levels at the most.
const MAX_LEVELS: usize = 64;

/// The members from the tree's root to its nodes.
#[derive(Debug)]
pub(super) struct TreeLayout {
    /// `mm_struct.mm_rb.rb_node`.
    root: Slot,
    left: Slot,
    right: Slot,
    /// The node within `vm_area_struct`, bytes.
    node: u64,
    /// `vm_area_struct.vm_end`.
    end: Slot,
}

impl TreeLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let node = StructType::named(btf, "rb_node")?;
        let area = StructType::named(btf, "vm_area_struct")?;
        // The first member of a node, whose other members are read from its beginning.
        let first = area.slot("vm_rb.__rb_parent_color")?.at();
        let inner = node.slot("__rb_parent_color")?.at();
        Ok(Self {
            root: StructType::named(btf, "mm_struct")?.slot("mm_rb.rb_node")?,
            left: node.slot("rb_left")?,
            right: node.slot("rb_right")?,
            node: first.saturating_sub(inner) as u64,
            end: area.slot("vm_end")?,
        })
    }

    /// The first mapping of the program with the `mm_struct` at `memory` that ends behind `address`.
    pub(super) fn entry(
        &self,
        reads: &Reads<'_>,
        memory: Gva,
        address: u64,
    ) -> Result<Option<Gva>, ReadsError> {
        let mut next = reads.pointer(memory, self.root)?;
        let mut found = None;
        for _ in 0..MAX_LEVELS {
            let Some(node) = next else { break };
            let area = Gva(node.0.wrapping_sub(self.node));
            let is_behind = reads.number(area, self.end)? > address;
            if is_behind {
                found = Some(area);
            }
            next = reads.pointer(node, if is_behind { self.left } else { self.right })?;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::synthetic::Blob;

    use super::*;
    use crate::fake::{Fake, at};

    const MEMORY: u64 = 0x100;
    const AREAS: [u64; 3] = [0x200, 0x300, 0x400];
    /// The offset of the node in an area.
    const NODE: u64 = 0x20;

    fn kernel() -> Fake {
        let mut blob = Blob::new();
        let long = blob.int("unsigned long", 8);
        let members = [
            ("__rb_parent_color", long, 0),
            ("rb_right", long, 8),
            ("rb_left", long, 16),
        ];
        let node = blob.structure("rb_node", 24, &members);
        let root = blob.structure("rb_root", 8, &[("rb_node", long, 0)]);
        let members = [("vm_end", long, 8), ("vm_rb", node, 0x20)];
        blob.structure("vm_area_struct", 0x40, &members);
        blob.structure("mm_struct", 16, &[("mm_rb", root, 8)]);
        let mut fake = Fake::new(blob, 0x1000, &[]);
        // The areas end at 0x2000, 0x4000 and 0x6000; the middle one is the root.
        for (area, end) in AREAS.into_iter().zip([0x2000, 0x4000, 0x6000]) {
            fake.put64(area + 8, end);
        }
        fake.point(MEMORY + 8, AREAS[1] + NODE);
        fake.point(AREAS[1] + NODE + 16, AREAS[0] + NODE);
        fake.point(AREAS[1] + NODE + 8, AREAS[2] + NODE);
        fake
    }

    fn entry(fake: &Fake, address: u64) -> Option<Gva> {
        let view = fake.view();
        let reads = Reads::new(&view, 1 << 20);
        let layout = TreeLayout::new(view.types().expect("types")).expect("a layout");
        layout.entry(&reads, at(MEMORY), address).expect("readable")
    }

    #[test]
    fn first_mapping_that_ends_behind_the_address_is_found() {
        let fake = kernel();
        assert_eq!(entry(&fake, 0), Some(at(AREAS[0])));
        assert_eq!(entry(&fake, 0x2000), Some(at(AREAS[1])));
        assert_eq!(entry(&fake, 0x3fff), Some(at(AREAS[1])));
        assert_eq!(entry(&fake, 0x5fff), Some(at(AREAS[2])));
        assert_eq!(entry(&fake, 0x6000), None);
    }

    #[test]
    fn circle_ends() {
        let mut fake = kernel();
        fake.point(AREAS[0] + NODE + 16, AREAS[0] + NODE);
        assert_eq!(entry(&fake, 0), Some(at(AREAS[0])));
    }
}
