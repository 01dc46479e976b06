//! The pages of a file in memory.
//!
//! The kernel keeps them in an array by the number of the page (`xarray`), a tree with 64 slots a node. A slot has a folio, a mark of a
//! page that was evicted, or a link to an earlier slot with the folio of several pages.

use std::ops::Range;

use address::{Gpa, Gva, PAGE_BYTES};
use introspect::btf::Slot;
use introspect::{Btf, PhysMemory};

use super::direct_map::{DirectMap, Mapped};
use super::folio::FolioFlag;
use super::open_file::{FileId, FileVersion};
use crate::KernelView;
use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// 64-bit numbers, 6 bits a level.
const MAX_LEVELS: usize = 11;
/// An entry with 2 in the lowest bits is a node, or below this the number of an earlier slot (`xa_is_sibling`).
const INTERNAL: u64 = 2;
const MAX_MARK: u64 = 4096;
/// The most pages of a folio: a gigabyte.
const MAX_FOLIO_PAGES: u64 = 1 << 18;
/// The start of the array of `struct page` in a kernel that does not move it, by the number of levels of page tables.
const FIXED_PAGES: [u64; 2] = [0xffff_ea00_0000_0000, 0xffd4_0000_0000_0000];

/// The time of the last write: since 6.11, since 6.7, and before.
const WRITTEN: [[&str; 2]; 3] = [
    ["i_mtime_sec", "i_mtime_nsec"],
    ["__i_mtime.tv_sec", "__i_mtime.tv_nsec"],
    ["i_mtime.tv_sec", "i_mtime.tv_nsec"],
];

/// The members from a file to its pages.
#[derive(Debug)]
pub(super) struct PageCacheLayout {
    /// `file.f_mapping`.
    pub(super) mapping: Slot,
    /// `address_space.i_pages.xa_head`.
    head: Slot,
    /// `xa_node.shift` and `xa_node.slots`.
    shift: Slot,
    slots: Range<usize>,
    /// The number of a folio's first page within the file.
    pub(super) index: Slot,
    /// The kernel reads the folio's contents, or changes it in another way.
    locked: FolioFlag,
    /// All pages of the folio have their contents. The last page of a file that was written may lack the flag: the blocks behind the end have no contents.
    up_to_date: FolioFlag,
    page_bytes: u64,
    /// `address_space.host`, and of the `inode` what tells files apart.
    pub(super) inode: Slot,
    file_system: Slot,
    number: Slot,
    generation: Slot,
    size: Slot,
    /// The seconds and nanoseconds of the last write.
    written: (Slot, Slot),
}

/// The array of `struct page`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageArray(Gva);

impl PageArray {
    /// Where the kernel says. A kernel that moves the array has the address in `vmemmap_base`.
    pub(super) fn find(view: &KernelView<'_>, map: DirectMap) -> Option<Self> {
        Some(Self(match view.address_of("vmemmap_base") {
            Some(at) => view.pointer(at).ok()?,
            None => Gva(FIXED_PAGES[usize::from(map.five_levels)]),
        }))
    }
}

impl PageCacheLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let node = StructType::named(btf, "xa_node")?;
        let page = StructType::named(btf, "page")?;
        let inode = StructType::named(btf, "inode")?;
        let pages = StructType::named(btf, "address_space")?;
        let folio = StructType::named(btf, "folio").and_then(|folio| folio.slot("index"));
        Ok(Self {
            mapping: StructType::named(btf, "file")?.slot("f_mapping")?,
            head: pages.slot("i_pages.xa_head")?,
            shift: node.slot("shift")?,
            slots: node.bytes("slots", PAGE_BYTES)?,
            // Up to 5.15.
            index: folio.or_else(|_| page.slot("index"))?,
            locked: FolioFlag::named(btf, "PG_locked")?,
            up_to_date: FolioFlag::named(btf, "PG_uptodate")?,
            page_bytes: page.size()? as u64,
            inode: pages.slot("host")?,
            file_system: inode.slot("i_sb")?,
            number: inode.slot("i_ino")?,
            generation: inode.slot("i_generation")?,
            size: inode.slot("i_size")?,
            written: WRITTEN
                .into_iter()
                .find_map(|[seconds, nanoseconds]| {
                    Some((inode.slot(seconds).ok()?, inode.slot(nanoseconds).ok()?))
                })
                .ok_or_else(|| inode.without("i_mtime"))?,
        })
    }

    /// The identity of the file with the `address_space` at `pages` and the `inode` at `inode`.
    pub(super) fn identity(
        &self,
        reads: &Reads<'_>,
        pages: Gva,
        inode: Gva,
    ) -> Result<FileId, ReadsError> {
        Ok(FileId {
            pages,
            file_system: reads.number(inode, self.file_system)?,
            number: reads.number(inode, self.number)?,
            generation: reads.number(inode, self.generation)?,
        })
    }

    /// The version of the contents of the file with the `inode` at `inode`.
    pub(super) fn version(&self, reads: &Reads<'_>, inode: Gva) -> Result<FileVersion, ReadsError> {
        let (seconds, nanoseconds) = self.written;
        Ok(FileVersion {
            size: reads.number(inode, self.size)?,
            written: (
                reads.number(inode, seconds)?,
                reads.number(inode, nanoseconds)?,
            ),
        })
    }

    /// The address of the page with the number `number` of the file with the `address_space` at `mapping`; `None` if it is not in memory.
    pub(super) fn page(
        &self,
        reads: &Reads<'_>,
        pages: PageArray,
        mapping: Gva,
        number: u64,
    ) -> Result<Option<Gpa>, ReadsError> {
        match self.folio(reads, mapping, number)? {
            Some(folio) => self.page_of(reads, pages, folio, number),
            None => Ok(None),
        }
    }

    /// As [`Self::page`], and `None` while the kernel reads the page's contents.
    fn page_with_contents(
        &self,
        reads: &Reads<'_>,
        pages: PageArray,
        mapping: Gva,
        number: u64,
    ) -> Result<Option<Gpa>, ReadsError> {
        let Some(folio) = self.folio(reads, mapping, number)? else {
            return Ok(None);
        };
        if self.locked.is_set(reads, folio)? && !self.up_to_date.is_set(reads, folio)? {
            return Ok(None);
        }
        self.page_of(reads, pages, folio, number)
    }

    /// The address of the page of `folio` that is the file's page `number`.
    fn page_of(
        &self,
        reads: &Reads<'_>,
        pages: PageArray,
        folio: Gva,
        number: u64,
    ) -> Result<Option<Gpa>, ReadsError> {
        let first = reads.number(folio, self.index)?;
        let within = number.wrapping_sub(first);
        let frame = self
            .frame(pages, folio)
            .filter(|_| within < MAX_FOLIO_PAGES);
        Ok(frame.map(|frame| Gpa(frame.0.wrapping_add(within.wrapping_mul(PAGE_BYTES)))))
    }

    /// The address of the first page of `folio`.
    pub(super) fn frame(&self, pages: PageArray, folio: Gva) -> Option<Gpa> {
        let distance = folio.0.wrapping_sub(pages.0.0);
        let frame = distance / self.page_bytes;
        let is_page = distance.is_multiple_of(self.page_bytes);
        is_page.then_some(Gpa(frame.wrapping_mul(PAGE_BYTES)))
    }

    /// Whether no page of the file is in memory.
    pub(super) fn is_empty(&self, reads: &Reads<'_>, mapping: Gva) -> Result<bool, ReadsError> {
        Ok(reads.number(mapping, self.head)? == 0)
    }

    /// The folio in the slot for `number`.
    fn folio(
        &self,
        reads: &Reads<'_>,
        mapping: Gva,
        number: u64,
    ) -> Result<Option<Gva>, ReadsError> {
        let is_internal = |entry: u64| entry & 3 == INTERNAL;
        let mut entry = reads.number(mapping, self.head)?;
        if !is_internal(entry) && number != 0 {
            return Ok(None);
        }
        let width = ((self.slots.len() / 8) as u64).max(1);
        for level in 0..MAX_LEVELS {
            if !is_internal(entry) {
                let is_folio = entry != 0 && entry & 1 == 0;
                return Ok(is_folio.then_some(Gva(entry)));
            }
            if entry <= MAX_MARK {
                return Ok(None);
            }
            let node = Gva(entry - INTERNAL);
            let shift = u32::try_from(reads.number(node, self.shift)?).unwrap_or(u32::MAX);
            let rest = number.checked_shr(shift).unwrap_or(0);
            // The array is shorter than the number.
            if level == 0 && rest >= width {
                return Ok(None);
            }
            let slot = |slot: u64| -> Result<u64, ReadsError> {
                let mut bytes = [0; 8];
                let at = node.wrapping_add(self.slots.start as u64 + slot * 8);
                reads.fill(at, &mut bytes)?;
                Ok(u64::from_le_bytes(bytes))
            };
            entry = slot(rest % width)?;
            let earlier = entry >> 2;
            if is_internal(entry) && earlier < width {
                entry = slot(earlier)?;
            }
        }
        Ok(None)
    }
}

/// The bytes of a file, as far as they are in memory.
pub(super) struct CachedFile<'r> {
    layout: &'r PageCacheLayout,
    memory: Mapped<'r>,
    pages: PageArray,
    mapping: Gva,
}

impl<'r> CachedFile<'r> {
    /// The file with the `address_space` at `mapping`.
    pub(super) fn new(
        layout: &'r PageCacheLayout,
        reads: &'r Reads<'r>,
        map: DirectMap,
        pages: PageArray,
        mapping: Gva,
    ) -> Self {
        Self {
            layout,
            memory: Mapped { reads, map },
            pages,
            mapping,
        }
    }

    /// Fills `buf` from the offset `at` on; `None` if a page of the range is not in memory, or is being read.
    pub(super) fn read(&self, mut at: u64, buf: &mut [u8]) -> Option<()> {
        let mut rest = buf;
        while !rest.is_empty() {
            let (number, within) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let reads = self.memory.reads;
            let page = self
                .layout
                .page_with_contents(reads, self.pages, self.mapping, number);
            let page = page.ok().flatten()?;
            let left = usize::try_from(PAGE_BYTES - within).ok()?.min(rest.len());
            let (part, tail) = rest.split_at_mut(left);
            self.memory.read(Gpa(page.0 + within), part).ok()?;
            at = at.checked_add(left as u64)?;
            rest = tail;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::synthetic::Blob;

    use super::*;
    use crate::fake::{BASE, Fake, at};

    const MAPPING: u64 = 0x100;
    const NODE: u64 = 0x200;
    const FOLIOS: u64 = 0x800;
    const UP_TO_DATE: u32 = 3;
    /// The direct map begins at the fake's memory, and the array of `struct page` at its folios.
    const MAP: DirectMap = DirectMap {
        start: BASE,
        five_levels: false,
    };

    fn kernel() -> Fake {
        let mut blob = Blob::new();
        let byte = blob.int("unsigned char", 1);
        let int = blob.int("unsigned int", 4);
        let long = blob.int("unsigned long", 8);
        let slots = blob.array(long, 4);
        blob.structure("xa_node", 48, &[("shift", byte, 0), ("slots", slots, 16)]);
        let array = blob.structure("xarray", 16, &[("xa_head", long, 8)]);
        let members = [("host", long, 0), ("i_pages", array, 8)];
        blob.structure("address_space", 32, &members);
        blob.structure("file", 8, &[("f_mapping", long, 0)]);
        let members = [
            ("i_ino", long, 0),
            ("i_generation", int, 8),
            ("i_sb", long, 16),
            ("i_size", long, 24),
            ("i_mtime_sec", long, 32),
            ("i_mtime_nsec", int, 12),
        ];
        blob.structure("inode", 40, &members);
        let members = [("flags", long, 0), ("index", long, 32)];
        blob.structure("folio", 64, &members);
        blob.enumeration(
            "pageflags",
            false,
            &[("PG_locked", 0), ("PG_uptodate", UP_TO_DATE)],
        );
        blob.structure("page", 64, &[("flags", long, 0)]);
        Fake::new(blob, 0x4000, &[])
    }

    fn page(fake: &Fake, number: u64) -> Option<Gpa> {
        let view = fake.view();
        let reads = Reads::new(&view, 1 << 20);
        let layout = PageCacheLayout::new(view.types().expect("types")).expect("a layout");
        let pages = PageArray(at(FOLIOS));
        let page = layout.page(&reads, pages, at(MAPPING), number);
        page.expect("readable")
    }

    fn folio(fake: &mut Fake, frame: u64, first: u64) -> u64 {
        fake.put64(FOLIOS + frame * 64 + 32, first);
        at(FOLIOS + frame * 64).0
    }

    #[test]
    fn file_of_one_page_has_no_node() {
        let mut fake = kernel();
        let only = folio(&mut fake, 3, 0);
        fake.put64(MAPPING + 16, only);
        assert_eq!(page(&fake, 0), Some(Gpa(0x3000)));
        assert_eq!(page(&fake, 1), None);
        // A mark of an evicted page.
        fake.put64(MAPPING + 16, 0x1001);
        assert_eq!(page(&fake, 0), None);
    }

    #[test]
    fn slot_of_a_large_folio_leads_to_its_first() {
        let mut fake = kernel();
        fake.put64(MAPPING + 16, at(NODE).0 | INTERNAL);
        let large = folio(&mut fake, 8, 0);
        fake.put64(NODE + 16, large);
        // The sibling of slot 0.
        fake.put64(NODE + 24, INTERNAL);
        assert_eq!(page(&fake, 1), Some(Gpa(0x9000)));
        assert_eq!((page(&fake, 2), page(&fake, 4)), (None, None));
        // A folio whose first page lies behind the wanted one.
        folio(&mut fake, 8, 2);
        assert_eq!(page(&fake, 1), None);
    }

    #[test]
    fn circle_of_nodes_ends() {
        let mut fake = kernel();
        fake.put64(MAPPING + 16, at(NODE).0 | INTERNAL);
        fake.put64(NODE + 16, at(NODE).0 | INTERNAL);
        assert_eq!(page(&fake, 0), None);
        fake.put(NODE, &[255]);
        assert_eq!(page(&fake, u64::MAX), None);
    }

    #[test]
    fn bytes_end_with_the_first_missing_page() {
        let mut fake = kernel();
        let only = folio(&mut fake, 3, 0);
        fake.put64(MAPPING + 16, only);
        fake.put(0x3ffe, &[1, 2]);
        let view = fake.view();
        let reads = Reads::new(&view, 1 << 20);
        let layout = PageCacheLayout::new(view.types().expect("types")).expect("a layout");
        let file = CachedFile::new(&layout, &reads, MAP, PageArray(at(FOLIOS)), at(MAPPING));
        let mut bytes = [0; 2];
        assert_eq!((file.read(0xffe, &mut bytes), bytes), (Some(()), [1, 2]));
        assert_eq!(file.read(0xfff, &mut bytes), None);
    }

    #[test]
    fn page_that_is_being_read_has_no_bytes() {
        let mut fake = kernel();
        let only = folio(&mut fake, 3, 0);
        fake.put64(MAPPING + 16, only);
        let up_to_date = 1 << UP_TO_DATE;
        for (flags, bytes) in [
            (1, None),
            (1 | up_to_date, Some(())),
            (0, Some(())),
            (up_to_date, Some(())),
        ] {
            fake.put64(FOLIOS + 3 * 64, flags);
            let view = fake.view();
            let reads = Reads::new(&view, 1 << 20);
            let layout = PageCacheLayout::new(view.types().expect("types")).expect("a layout");
            let pages = PageArray(at(FOLIOS));
            let file = CachedFile::new(&layout, &reads, MAP, pages, at(MAPPING));
            assert_eq!(file.read(0, &mut [0]), bytes, "{flags:#x}");
            let page = layout.page(&reads, pages, at(MAPPING), 0);
            assert_eq!(page.expect("readable"), Some(Gpa(0x3000)));
        }
    }
}
