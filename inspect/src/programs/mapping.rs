//! The mappings of a program.

use address::{Gva, PAGE_BYTES};
use introspect::Btf;
use introspect::btf::Slot;

use super::maple::MapleLayout;
use super::tree::TreeLayout;
use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// `DEFAULT_MAX_MAP_COUNT`.
const MAX_MAPPINGS: usize = 65_530;

/// A range of a program's address space (`vm_area_struct`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: Gva,
    pub(super) end: Gva,
    /// The `struct file`, and the offset of `start` in it, in bytes.
    pub(super) file: Option<(Gva, u64)>,
}

/// The members of `mm_struct` and `vm_area_struct`.
#[derive(Debug)]
pub(super) struct MappingLayout {
    lookup: Lookup,
    start: Slot,
    end: Slot,
    page: Slot,
    file: Slot,
}

/// The structure that the kernel finds mappings by.
#[derive(Debug)]
enum Lookup {
    Maple(MapleLayout),
    Tree(TreeLayout),
}

impl MappingLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let area = StructType::named(btf, "vm_area_struct")?;
        let root = StructType::named(btf, "mm_struct")?.slot("mm_mt.ma_root");
        let lookup = match root {
            Ok(root) => Lookup::Maple(MapleLayout::new(btf, root)?),
            Err(_) => Lookup::Tree(TreeLayout::new(btf)?),
        };
        Ok(Self {
            lookup,
            start: area.slot("vm_start")?,
            end: area.slot("vm_end")?,
            page: area.slot("vm_pgoff")?,
            file: area.slot("vm_file")?,
        })
    }

    /// The `struct file` of each mapping of the program with the `mm_struct` at `memory`, in the order of addresses.
    pub(super) fn files(&self, reads: &Reads<'_>, memory: Gva) -> Result<Vec<Gva>, ReadsError> {
        let mut files = Vec::new();
        let mut next = Some(0);
        while let Some(address) = next.filter(|_| files.len() < MAX_MAPPINGS) {
            let (area, last) = match &self.lookup {
                Lookup::Maple(maple) => maple.range(reads, memory, address)?,
                Lookup::Tree(tree) => match tree.entry(reads, memory, address)? {
                    Some(area) => (Some(area), reads.number(area, self.end)?.wrapping_sub(1)),
                    None => (None, u64::MAX),
                },
            };
            if let Some(area) = area {
                files.extend(reads.pointer(area, self.file)?);
            }
            // A tree that the kernel changes meanwhile may lead back.
            next = last.checked_add(1).filter(|next| *next > address);
        }
        Ok(files)
    }

    /// The mapping at `address` of the program with the `mm_struct` at `memory`.
    pub(super) fn at(
        &self,
        reads: &Reads<'_>,
        memory: Gva,
        address: Gva,
    ) -> Result<Option<Mapping>, ReadsError> {
        let area = match &self.lookup {
            Lookup::Maple(maple) => maple.entry(reads, memory, address.0)?,
            Lookup::Tree(tree) => tree.entry(reads, memory, address.0)?,
        };
        let Some(area) = area else { return Ok(None) };
        let start = Gva(reads.number(area, self.start)?);
        let end = Gva(reads.number(area, self.end)?);
        if !(start..end).contains(&address) {
            return Ok(None);
        }
        let file = reads.pointer(area, self.file)?;
        let offset = reads.number(area, self.page)?.wrapping_mul(PAGE_BYTES);
        Ok(Some(Mapping {
            start,
            end,
            file: file.map(|file| (file, offset)),
        }))
    }
}
