//! The files that programs have mapped: which file a `struct file` is, where its functions are, and its pages in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use address::{Gpa, Gva, PAGE_BYTES};
use introspect::Btf;
use introspect::btf::Slot;

use super::direct_map::DirectMap;
use super::files::ProgramFiles;
use super::folio::FolioLayout;
use super::mapping::{MappedArea, MappingLayout};
use super::open_file::{FileId, OpenFile, Storage};
use super::page_cache::{CachedFile, PageArray, PageCacheLayout};
use super::path::PathLayout;
use crate::KernelView;
use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};
use crate::tasks::{TaskList, TaskListError};

/// `OVERLAYFS_SUPER_MAGIC`, `HUGETLBFS_MAGIC` and `FUSE_SUPER_MAGIC`.
const OVERLAY: u64 = 0x794c_7630;
const HUGE: u64 = 0x9584_58f6;
const FUSE: u64 = 0x6573_5546;
/// `S_DAX` of `inode.i_flags`.
const DAX: u64 = 1 << 13;

/// Where the kernel keeps what it knows of files. Made while the kernel runs.
#[derive(Debug)]
pub struct FileLayout {
    /// `task_struct.mm`.
    memory: Slot,
    mappings: MappingLayout,
    pub(super) cache: PageCacheLayout,
    paths: PathLayout,
    /// `super_block.s_magic` and `inode.i_flags`.
    magic: Slot,
    flags: Slot,
    folio: FolioLayout,
    /// The tables of functions read so far.
    pub(super) known: ProgramFiles,
}

impl FileLayout {
    /// Takes the places of members from the kernel's types.
    ///
    /// # Errors
    ///
    /// If the types do not describe files.
    pub fn new(types: &Btf) -> Result<Self, NoType> {
        Ok(Self {
            memory: StructType::named(types, "task_struct")?.slot("mm")?,
            mappings: MappingLayout::new(types)?,
            cache: PageCacheLayout::new(types)?,
            paths: PathLayout::new(types)?,
            magic: StructType::named(types, "super_block")?.slot("s_magic")?,
            flags: StructType::named(types, "inode")?.slot("i_flags")?,
            folio: FolioLayout::new(types)?,
            known: ProgramFiles::default(),
        })
    }
}

/// The files that programs have mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedFiles {
    /// The `struct file` of each mapping, and the pages of the file of which programs may have their own copies.
    pub files: BTreeMap<Gva, Vec<Range<u64>>>,
    /// The number of programs whose mappings cannot be read.
    pub left_out: usize,
    /// The `mm_struct` of each program whose mappings the kernel may be about to change.
    pub changing: BTreeSet<Gva>,
}

/// A reader of files, which may change while the guest runs: any answer may be outdated.
pub struct FileReader<'v> {
    pub(super) layout: &'v FileLayout,
    pub(super) reads: Reads<'v>,
    map: DirectMap,
    pages: PageArray,
}

impl fmt::Debug for FileReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader").finish_non_exhaustive()
    }
}

impl<'v> FileReader<'v> {
    /// A reader of `view`, which reads `limit` bytes for an answer at the most, and `total` bytes for all, each read counted with 256 bytes
    /// more than it has. `None` if the kernel's map of physical memory cannot be found.
    #[must_use]
    pub fn new(
        layout: &'v FileLayout,
        view: &'v KernelView<'v>,
        limit: usize,
        total: usize,
    ) -> Option<Self> {
        let map = DirectMap::find(view)?;
        Some(Self {
            layout,
            reads: Reads::for_many(view, limit, total),
            map,
            pages: PageArray::find(view, map)?,
        })
    }

    /// Begins the next answer. Without this call, all answers together are limited as one.
    pub fn renew(&self) {
        self.reads.renew();
    }

    /// Whether an answer has needed more reads than were left: the answer is empty, or "no".
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.reads.was_refused()
    }

    /// The file of the `struct file` at `file`.
    ///
    /// # Errors
    ///
    /// If a part cannot be read.
    pub fn open(&self, file: Gva) -> Result<Option<OpenFile>, ReadsError> {
        let cache = &self.layout.cache;
        let Some(pages) = self.reads.pointer(file, cache.mapping)? else {
            return Ok(None);
        };
        let Some(inode) = self.reads.pointer(pages, cache.inode)? else {
            return Ok(None);
        };
        let id = cache.identity(&self.reads, pages, inode)?;
        let magic = self.reads.number(Gva(id.file_system), self.layout.magic)?;
        let flags = self.reads.number(inode, self.layout.flags)?;
        Ok(Some(OpenFile {
            id,
            version: cache.version(&self.reads, inode)?,
            path: self.layout.paths.of(&self.reads, file)?,
            storage: match magic {
                OVERLAY => Storage::Overlay,
                HUGE => Storage::HugePages,
                FUSE => Storage::Fuse,
                _ if flags & DAX != 0 => Storage::Persistent,
                _ => Storage::PageCache,
            },
        }))
    }

    /// The `struct file` of the mapping at `area`, a `vm_area_struct`; `None` if the mapping has no file.
    #[must_use]
    pub fn file_of(&self, area: Gva) -> Option<Gva> {
        let file = self.layout.mappings.file_of(&self.reads, area);
        file.ok().flatten()
    }

    /// The `address_space` of the `struct file` at `file`.
    #[must_use]
    pub fn pages_of(&self, file: Gva) -> Option<Gva> {
        let pages = self.reads.pointer(file, self.layout.cache.mapping);
        pages.ok().flatten()
    }

    /// Whether the file exists still.
    #[must_use]
    pub fn exists(&self, file: &FileId) -> bool {
        let inode = self.reads.pointer(file.pages, self.layout.cache.inode);
        let Ok(Some(inode)) = inode else { return false };
        let now = self.layout.cache.identity(&self.reads, file.pages, inode);
        now.ok() == Some(*file)
    }

    /// Whether a page of the file is in memory.
    #[must_use]
    pub fn has_pages(&self, file: &FileId) -> bool {
        let is_empty = self.layout.cache.is_empty(&self.reads, file.pages);
        !is_empty.unwrap_or(true)
    }

    /// The address of the page with the number `number` of the file; `None` if it is not in memory.
    #[must_use]
    pub fn page(&self, file: &FileId, number: u64) -> Option<Gpa> {
        let cache = &self.layout.cache;
        let page = cache.page(&self.reads, self.pages, file.pages, number);
        page.ok().flatten()
    }

    /// The address of the page with the number `number` of a file, in a folio that begins with the number `first`; `None` if the folio does
    /// not have the page.
    #[must_use]
    pub fn page_in(&self, folio: Gva, first: u64, number: u64) -> Option<Gpa> {
        let within = number.checked_sub(first)?;
        (within < self.layout.folio.pages(&self.reads, folio)).then_some(())?;
        let frame = self.layout.cache.frame(self.pages, folio)?;
        Some(Gpa(frame.0.wrapping_add(within.wrapping_mul(PAGE_BYTES))))
    }

    /// The number of the first page of a folio within its file.
    #[must_use]
    pub fn first_of(&self, folio: Gva) -> Option<u64> {
        self.reads.number(folio, self.layout.cache.index).ok()
    }

    /// Fills `buf` with the bytes of the file from `at` on; `None` if a page is not in memory.
    #[must_use]
    pub fn read(&self, file: &FileId, at: u64, buf: &mut [u8]) -> Option<()> {
        self.cached(file).read(at, buf)
    }

    pub(super) fn cached(&self, file: &FileId) -> CachedFile<'_> {
        let cache = &self.layout.cache;
        CachedFile::new(cache, &self.reads, self.map, self.pages, file.pages)
    }

    /// The files that programs have mapped.
    ///
    /// # Errors
    ///
    /// If the tasks cannot be listed.
    pub fn mapped(&self, view: &KernelView<'_>) -> Result<MappedFiles, TaskListError> {
        let mappings = &self.layout.mappings;
        let mut memories = BTreeSet::new();
        for thread in TaskList::new(view)?.threads(view)? {
            self.renew();
            let memory = self.reads.pointer(thread.at, self.layout.memory);
            memories.extend(memory.ok().flatten());
        }
        let mut mapped = MappedFiles::default();
        for memory in memories {
            self.renew();
            if mappings.is_changing(&self.reads, memory) {
                mapped.changing.insert(memory);
            }
            match mappings.files(&self.reads, memory) {
                Ok(files) => {
                    for MappedArea { file, copied } in files {
                        mapped.files.entry(file).or_default().extend(copied);
                    }
                }
                Err(_) => mapped.left_out += 1,
            }
        }
        Ok(mapped)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fake::{Fake, at};
    use crate::programs::reader_tests::{
        AREA, FILE, FOLIOS, HEADERS, INODE, MM, PAGES, PG_HEAD, SUPER_BLOCK, cache, kernel,
    };

    /// The folio in the cache, and its page.
    const FOLIO: u64 = FOLIOS + 8 * 64;

    pub(crate) fn with<T>(fake: &Fake, read: impl FnOnce(&FileReader<'_>) -> T) -> T {
        let view = fake.view();
        let layout = FileLayout::new(view.types().expect("types")).expect("a layout");
        read(&FileReader::new(&layout, &view, 1 << 20, 1 << 20).expect("a reader"))
    }

    pub(crate) fn open(fake: &Fake) -> OpenFile {
        with(fake, |reader| reader.open(at(FILE)).expect("readable")).expect("a file")
    }

    #[test]
    fn file_has_a_path_and_the_page_that_is_in_memory() {
        let mut fake = kernel();
        let file = open(&fake);
        assert_eq!((&*file.path, file.storage), ("/", Storage::PageCache));
        assert_eq!(file.id.pages(), at(PAGES));
        with(&fake, |reader| {
            assert_eq!(reader.page(&file.id, 0), None);
            assert!(!reader.has_pages(&file.id));
        });
        cache(&mut fake);
        with(&fake, |reader| {
            assert!(reader.has_pages(&file.id));
            assert_eq!(reader.page(&file.id, 0), Some(Gpa(HEADERS)));
            assert_eq!(reader.page(&file.id, 1), None);
        });
    }

    #[test]
    fn file_is_another_when_its_memory_has_another_number() {
        let mut fake = kernel();
        let file = open(&fake).id;
        assert!(with(&fake, |reader| reader.exists(&file)));
        fake.put64(INODE, 8);
        assert!(!with(&fake, |reader| reader.exists(&file)));
        fake.put64(INODE, 7);
        fake.put(INODE + 8, &[1]);
        assert!(!with(&fake, |reader| reader.exists(&file)));
    }

    #[test]
    fn file_in_other_memory_is_the_same_file_and_written_contents_have_another_version() {
        let mut fake = kernel();
        let before = open(&fake);
        let elsewhere = FileId {
            pages: at(0),
            ..before.id
        };
        assert!(before.id != elsewhere && before.id.is_same_file(&elsewhere));
        fake.put64(INODE + 32, 1000);
        let after = open(&fake);
        assert_eq!(before.id, after.id);
        assert_ne!(before.version, after.version);
        fake.put64(INODE, 8);
        assert!(!before.id.is_same_file(&open(&fake).id));
    }

    #[test]
    fn open_file_has_the_storage_of_its_file_system() {
        let mut fake = kernel();
        for (magic, storage) in [
            (OVERLAY, Storage::Overlay),
            (HUGE, Storage::HugePages),
            (FUSE, Storage::Fuse),
            (0xef53, Storage::PageCache),
        ] {
            fake.put64(SUPER_BLOCK, magic);
            assert_eq!(open(&fake).storage, storage);
        }
        fake.put(INODE + 12, &0x2000_u32.to_le_bytes());
        assert_eq!(open(&fake).storage, Storage::Persistent);
    }

    #[test]
    fn folio_has_as_many_pages_as_it_says() {
        let mut fake = kernel();
        let page = |fake: &Fake, first, number| {
            with(fake, |reader| reader.page_in(at(FOLIO), first, number))
        };
        fake.put(FOLIO + 40, &[4]);
        assert_eq!(page(&fake, 5, 5), Some(Gpa(HEADERS)));
        assert_eq!((page(&fake, 5, 6), page(&fake, 5, 4)), (None, None));
        fake.put64(FOLIO, 1 << PG_HEAD);
        assert_eq!(page(&fake, 5, 8), Some(Gpa(HEADERS + 0x3000)));
        assert_eq!(page(&fake, 5, 9), None);
    }

    #[test]
    fn mapping_with_own_pages_may_have_copies_of_its_pages() {
        let mut fake = kernel();
        fake.put64(AREA + 0x38, 3);
        let areas = |fake: &Fake| {
            with(fake, |reader| {
                let files = reader.layout.mappings.files(&reader.reads, at(MM));
                files.expect("readable")
            })
        };
        let area = |copied| {
            let file = at(FILE);
            vec![MappedArea { file, copied }]
        };
        assert_eq!(areas(&fake), area(None));
        fake.put64(AREA + 0x50, at(0x100).0);
        assert_eq!(areas(&fake), area(Some(3..4)));
    }

    #[test]
    fn mapping_has_the_file_that_it_names() {
        let mut fake = kernel();
        let file = |fake: &Fake| with(fake, |reader| reader.file_of(at(AREA)));
        assert_eq!(file(&fake), Some(at(FILE)));
        fake.put64(AREA + 0x40, 0);
        assert_eq!(file(&fake), None);
    }

    #[test]
    fn each_answer_may_cost_as_much_as_the_first_up_to_the_total() {
        let fake = kernel();
        let view = fake.view();
        let layout = FileLayout::new(view.types().expect("types")).expect("a layout");
        let id = open(&fake).id;
        let answers = |total| {
            let reader = FileReader::new(&layout, &view, 2000, total).expect("a reader");
            let answers = (0..100).filter(|_| {
                reader.renew();
                reader.exists(&id)
            });
            (answers.count(), reader.is_exhausted())
        };
        assert_eq!(answers(1 << 20), (100, false));
        let (few, is_exhausted) = answers(5000);
        assert!((1..100).contains(&few) && is_exhausted, "{few}");
    }

    #[test]
    fn mappings_change_while_a_task_holds_their_lock_for_writing() {
        let mut fake = kernel();
        let is_changing = |fake: &Fake| {
            with(fake, |reader| {
                reader.layout.mappings.is_changing(&reader.reads, at(MM))
            })
        };
        // Two readers hold the lock.
        fake.put64(MM + 16, 0x200);
        assert!(!is_changing(&fake));
        fake.put64(MM + 16, 1);
        assert!(is_changing(&fake));
    }
}
