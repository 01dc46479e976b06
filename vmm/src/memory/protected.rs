//! Protected pages: each write of the guest exits before the write takes place, and the guest reads the page at full speed; or each access of
//! the guest exits, the fetch of an instruction included.
//!
//! KVM maps a guest page with the rights of the host mapping behind the page's slot. A protected page therefore has two mappings in this
//! process: RAM's own, which the VMM reads and writes, and a view, which the slot names and which has fewer rights. KVM cannot resolve the
//! guest's access, and `KVM_RUN` fails with EFAULT, before the instruction has any effect. A read-only slot (`KVM_MEM_READONLY`) would not
//! do: KVM then emulates the instruction first, and loses an update of another vCPU between the read and the write of a locked instruction.
//!
//! A KVM that emulates ring 0 anyway reports a plain write as `KVM_EXIT_MMIO`, and fails to emulate a locked instruction. KVM's emulator reads
//! a page without rights as `KVM_EXIT_MMIO`, too.
#![expect(unsafe_code, reason = "maps a page of RAM a second time")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::ptr::null_mut;

use address::{Gpa, PAGE_BYTES, PAGE_LEN};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::error::ProtectError;
use super::ram::RamRegion;

/// The most pages that have a view. A view stays until the machine ends: each splits a mapping of the process, and the host limits the
/// mappings to 65 530.
const MAX_VIEWS: usize = 8192;

/// The accesses of the guest that exit at a protected page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Writes.
    Writes,
    /// All: reads, writes, and fetches of instructions.
    Accesses,
}

impl Protection {
    /// The rights of the view while the page is protected.
    const fn rights(self) -> MprotectFlags {
        match self {
            Self::Writes => MprotectFlags::READ,
            Self::Accesses => MprotectFlags::empty(),
        }
    }
}

/// The rights of a view while the page is not protected.
const ALL_RIGHTS: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);

/// The protected pages of RAM. Changed with every vCPU paused.
#[derive(Debug, Default)]
pub(crate) struct ProtectedPages {
    /// The pages that are or were protected, and their views.
    views: BTreeMap<Gpa, View>,
    protected: BTreeMap<Gpa, Protection>,
}

impl ProtectedPages {
    /// Gives each page a view, and returns the views for the slots. RAM's contents do not change.
    pub(crate) fn views(
        &mut self,
        memory: &GuestMemoryMmap,
        pages: &BTreeMap<Gpa, Protection>,
    ) -> Result<Vec<RamRegion>, ProtectError> {
        let new = pages.keys().filter(|page| !self.views.contains_key(*page));
        let new: Vec<Gpa> = new.copied().collect();
        if self.views.len() + new.len() > MAX_VIEWS {
            return Err(ProtectError::TooMany { most: MAX_VIEWS });
        }
        for page in new {
            self.views.insert(page, View::of(memory, page)?);
        }
        let wanted = self
            .views
            .iter()
            .filter(|(page, _)| pages.contains_key(page));
        Ok(wanted
            .map(|(page, view)| RamRegion {
                gpa: page.0,
                bytes: PAGE_BYTES,
                host: view.0 as u64,
            })
            .collect())
    }

    /// Protects exactly these pages, which have views. If the host refuses, the pages protected before still are.
    pub(crate) fn protect(&mut self, pages: BTreeMap<Gpa, Protection>) -> Result<(), ProtectError> {
        let rights = |of: &BTreeMap<Gpa, Protection>, page: &Gpa| {
            of.get(page).map_or(ALL_RIGHTS, |page| page.rights())
        };
        let touched: BTreeSet<Gpa> = self.protected.keys().chain(pages.keys()).copied().collect();
        let changes = touched.into_iter().map(|page| {
            let (before, after) = (rights(&self.protected, &page), rights(&pages, &page));
            (page, before, after)
        });
        let changes = changes.filter(|(_, before, after)| before != after);
        let changes: Vec<(Gpa, MprotectFlags, MprotectFlags)> = changes.collect();
        for (done, (page, _, after)) in changes.iter().enumerate() {
            if let Err(error) = self.set(*page, *after) {
                for (page, before, _) in &changes[..done] {
                    // The host has just accepted a change of the same mapping.
                    let _ = self.set(*page, *before);
                }
                return Err(error);
            }
        }
        self.protected = pages;
        Ok(())
    }

    /// Lets the guest access the protected pages, or protects them again.
    pub(crate) fn lift(&self, lifted: bool) -> Result<(), ProtectError> {
        self.protected.iter().try_for_each(|(page, protection)| {
            let rights = if lifted {
                ALL_RIGHTS
            } else {
                protection.rights()
            };
            self.set(*page, rights)
        })
    }

    fn set(&self, page: Gpa, rights: MprotectFlags) -> Result<(), ProtectError> {
        let Some(view) = self.views.get(&page) else {
            return Ok(());
        };
        // SAFETY: the mapping is the view's own page, and the process itself never accesses memory through the view.
        unsafe { mprotect(view.0 as *mut c_void, PAGE_LEN, rights) }.map_err(refused("mprotect"))
    }
}

fn refused(request: &'static str) -> impl FnOnce(Errno) -> ProtectError {
    move |source| ProtectError::Host { request, source }
}

/// The address of the second mapping of a page of RAM.
#[derive(Debug)]
struct View(usize);

impl View {
    /// Maps the page a second time. No vCPU runs.
    fn of(memory: &GuestMemoryMmap, page: Gpa) -> Result<Self, ProtectError> {
        let no_ram = |_| ProtectError::NoRam { gpa: page };
        let mut bytes = [0; PAGE_LEN];
        memory
            .read_slice(&mut bytes, GuestAddress(page.0))
            .map_err(no_ram)?;
        let target = memory
            .get_host_address(GuestAddress(page.0))
            .map_err(no_ram)?;
        // SAFETY: a new mapping at an address that the host chooses.
        let mapped = unsafe {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(null_mut(), PAGE_LEN, rights, MapFlags::SHARED)
        };
        let view = Self(mapped.map_err(refused("mmap"))? as usize);
        // SAFETY: the mapping has just been made with this size, and no other code knows the address; the advice changes no byte.
        unsafe {
            (view.0 as *mut u8).copy_from(bytes.as_ptr(), PAGE_LEN);
            madvise(view.0 as *mut c_void, PAGE_LEN, Advice::LinuxDontDump)
        }
        .map_err(refused("madvise"))?;
        // SAFETY: `target` is a whole page of the RAM mapping, since the page was read there. The kernel replaces the page in one step by
        // a page with equal contents, so accesses of other threads see no change. An old size of 0 keeps the view mapped.
        unsafe {
            let view = view.0 as *mut c_void;
            mremap_fixed(view, 0, PAGE_LEN, MremapFlags::MAYMOVE, target.cast())
        }
        .map_err(refused("mremap"))?;
        Ok(view)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping is the view's own, and the machine's vCPUs have ended: `Shared` holds the views, and outlives the vCPU
        // threads.
        let _ = unsafe { munmap(self.0 as *mut c_void, PAGE_LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Ram;

    const PAGE: Gpa = Gpa(0x3000);

    fn ram() -> Ram {
        Ram::new(&[(GuestAddress(0), 0x8000)]).expect("memory")
    }

    fn pages(pages: &[u64]) -> BTreeMap<Gpa, Protection> {
        let pages = pages.iter().map(|page| Gpa(*page));
        pages.map(|page| (page, Protection::Writes)).collect()
    }

    /// The flags and rights of the mapping at `host`, by the host's kernel.
    fn mapping(host: u64) -> (String, String) {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut rights = None;
        for line in maps.lines() {
            let mut words = line.split(' ');
            let range = words.next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) =
                    (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
            {
                let is_here = (from..to).contains(&host);
                rights = is_here.then(|| words.next().unwrap_or_default().to_owned());
            }
            if let (Some(rights), Some(flags)) = (&rights, line.strip_prefix("VmFlags:")) {
                return (rights.clone(), flags.to_owned());
            }
        }
        panic!("{host:#x} is not mapped")
    }

    #[test]
    fn view_and_ram_share_their_bytes() {
        let ram = ram();
        ram.guest()
            .write_slice(&[7; 16], GuestAddress(PAGE.0 + 8))
            .expect("ram");
        let mut protected = ProtectedPages::default();
        let views = protected
            .views(ram.guest(), &pages(&[PAGE.0]))
            .expect("views");
        let [view] = views[..] else {
            panic!("{views:?}");
        };
        protected.protect(pages(&[PAGE.0])).expect("protected");
        let seen = || {
            let at = usize::try_from(view.host).expect("64 bits");
            // SAFETY: the view has 4096 bytes, which this thread alone writes.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 32) };
            [bytes[0], bytes[8], bytes[23], bytes[24]]
        };
        assert_eq!(seen(), [0, 7, 7, 0]);
        ram.guest()
            .write_slice(&[9], GuestAddress(PAGE.0))
            .expect("RAM's own mapping is writable");
        assert_eq!(seen(), [9, 7, 7, 0]);
    }

    #[test]
    fn views_are_read_only_while_protected_and_never_in_core_dumps() {
        let ram = ram();
        let mut protected = ProtectedPages::default();
        let views = protected
            .views(ram.guest(), &pages(&[PAGE.0]))
            .expect("views");
        let rights = || mapping(views[0].host).0;
        protected.protect(pages(&[PAGE.0])).expect("protected");
        assert_eq!(rights(), "r--s");
        protected.lift(true).expect("lifted");
        assert_eq!(rights(), "rw-s");
        protected.lift(false).expect("protected");
        assert_eq!(rights(), "r--s");
        protected.protect(pages(&[])).expect("writable");
        assert_eq!(rights(), "rw-s");
        let in_ram = ram.regions()[0].host + PAGE.0;
        for host in [views[0].host, in_ram] {
            let (_, flags) = mapping(host);
            assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
        }
    }

    #[test]
    fn view_of_a_page_without_accesses_has_no_rights() {
        let ram = ram();
        let mut protected = ProtectedPages::default();
        let wanted = BTreeMap::from([(PAGE, Protection::Accesses)]);
        let views = protected.views(ram.guest(), &wanted).expect("views");
        let rights = || mapping(views[0].host).0;
        protected.protect(wanted.clone()).expect("protected");
        assert_eq!(rights(), "---s");
        protected.lift(true).expect("lifted");
        assert_eq!(rights(), "rw-s");
        protected.lift(false).expect("protected");
        assert_eq!(rights(), "---s");
        protected.protect(pages(&[PAGE.0])).expect("other rights");
        assert_eq!(rights(), "r--s");
    }

    #[test]
    fn refused_change_leaves_the_rights_as_before() {
        let ram = ram();
        let mut protected = ProtectedPages::default();
        let wanted = pages(&[PAGE.0, PAGE.0 + 0x1000]);
        let views = protected.views(ram.guest(), &wanted).expect("views");
        let rights = || [0, 1].map(|view: usize| mapping(views[view].host).0);
        protected.protect(pages(&[PAGE.0])).expect("protected");
        // The host has no mapping there.
        let missing = Gpa(PAGE.0 + 0x2000);
        protected.views.insert(missing, View(PAGE_LEN));
        let refused = protected.protect(pages(&[PAGE.0 + 0x1000, missing.0]));
        assert!(matches!(refused, Err(ProtectError::Host { .. })));
        assert_eq!(rights(), ["r--s", "rw-s"]);
        protected.lift(true).expect("lifted");
        assert_eq!(rights(), ["rw-s", "rw-s"]);
    }

    #[test]
    fn pages_keep_their_views() {
        let ram = ram();
        let mut protected = ProtectedPages::default();
        let first = protected
            .views(ram.guest(), &pages(&[PAGE.0]))
            .expect("views");
        let none = protected.views(ram.guest(), &pages(&[])).expect("views");
        let again = protected
            .views(ram.guest(), &pages(&[PAGE.0]))
            .expect("views");
        assert_eq!((none.len(), again), (0, first));
        let outside = protected.views(ram.guest(), &pages(&[0x9000]));
        assert!(matches!(
            outside,
            Err(ProtectError::NoRam { gpa: Gpa(0x9000) })
        ));
    }

    #[test]
    fn number_of_views_is_limited() {
        let bytes = (MAX_VIEWS + 1) * PAGE_LEN;
        let ram = Ram::new(&[(GuestAddress(0), bytes)]).expect("memory");
        let all = (0..=MAX_VIEWS as u64).map(|page| Gpa(page * PAGE_BYTES));
        let all = all.map(|page| (page, Protection::Writes)).collect();
        let views = ProtectedPages::default().views(ram.guest(), &all);
        assert!(matches!(
            views,
            Err(ProtectError::TooMany { most: MAX_VIEWS })
        ));
    }
}
