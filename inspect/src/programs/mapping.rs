//! The mappings of a program.

use std::ops::Range;

use address::{Gva, PAGE_BYTES};
use introspect::Btf;
use introspect::btf::Slot;

use super::maple::MapleLayout;
use super::tree::TreeLayout;
use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// `DEFAULT_MAX_MAP_COUNT`.
const MAX_MAPPINGS: usize = 65_530;
/// `RWSEM_WRITER_LOCKED`, and `WRITER_BIAS` of PREEMPT_RT.
const WRITER_LOCKED: u64 = 1;
const WRITER_BIAS: u64 = 1 << 30;

/// A range of a program's address space (`vm_area_struct`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: Gva,
    pub(super) end: Gva,
    /// The `struct file`, and the offset of `start` in it, in bytes.
    pub(super) file: Option<(Gva, u64)>,
}

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedArea {
    /// The `struct file`.
    pub(super) file: Gva,
    /// The pages of the file of which the program may have its own copies.
    pub(super) copied: Option<Range<u64>>,
}

/// The lock of a program's mappings: a bit that is set while a task holds the lock for writing.
#[derive(Clone, Copy, Debug)]
struct LockLayout {
    word: Slot,
    writer: u64,
}

impl LockLayout {
    fn new(memory: &StructType<'_>) -> Option<Self> {
        // With PREEMPT_RT, the lock has other members.
        let plain = ("mmap_lock.count.counter", WRITER_LOCKED);
        let real_time = ("mmap_lock.rwbase.readers.counter", WRITER_BIAS);
        [plain, real_time].into_iter().find_map(|(name, writer)| {
            let word = memory.slot(name).ok()?;
            Some(Self { word, writer })
        })
    }
}

/// The members of `mm_struct` and `vm_area_struct`.
#[derive(Debug)]
pub(super) struct MappingLayout {
    lookup: Lookup,
    start: Slot,
    end: Slot,
    page: Slot,
    file: Slot,
    /// The mapping's own pages: null before the first write to the mapping.
    own_pages: Slot,
    lock: Option<LockLayout>,
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
            own_pages: area.slot("anon_vma")?,
            lock: LockLayout::new(&StructType::named(btf, "mm_struct")?),
        })
    }

    /// Whether the kernel may be about to change the mappings of the program with the `mm_struct` at `memory`: a task holds their lock for
    /// writing, or the lock cannot be read.
    pub(super) fn is_changing(&self, reads: &Reads<'_>, memory: Gva) -> bool {
        let is_locked = self.lock.and_then(|lock| {
            let word = reads.number(memory, lock.word).ok()?;
            Some(word & lock.writer != 0)
        });
        is_locked.unwrap_or(true)
    }

    /// The mappings of files of the program with the `mm_struct` at `memory`, in the order of addresses.
    pub(super) fn files(
        &self,
        reads: &Reads<'_>,
        memory: Gva,
    ) -> Result<Vec<MappedArea>, ReadsError> {
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
            if let Some(area) = area
                && let Some(file) = self.file_of(reads, area)?
            {
                let copied = match reads.pointer(area, self.own_pages)? {
                    Some(_) => Some(self.pages(reads, area)?),
                    None => None,
                };
                files.push(MappedArea { file, copied });
            }
            // A tree that the kernel changes meanwhile may lead back.
            next = last.checked_add(1).filter(|next| *next > address);
        }
        Ok(files)
    }

    /// The `struct file` of the mapping at `area`.
    pub(super) fn file_of(&self, reads: &Reads<'_>, area: Gva) -> Result<Option<Gva>, ReadsError> {
        reads.pointer(area, self.file)
    }

    /// The pages of the file that the mapping at `area` has.
    fn pages(&self, reads: &Reads<'_>, area: Gva) -> Result<Range<u64>, ReadsError> {
        let first = reads.number(area, self.page)?;
        let (start, end) = (
            reads.number(area, self.start)?,
            reads.number(area, self.end)?,
        );
        let len = end.saturating_sub(start) / PAGE_BYTES;
        Ok(first..first.saturating_add(len))
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
        let file = self.file_of(reads, area)?;
        let offset = reads.number(area, self.page)?.wrapping_mul(PAGE_BYTES);
        Ok(Some(Mapping {
            start,
            end,
            file: file.map(|file| (file, offset)),
        }))
    }
}
