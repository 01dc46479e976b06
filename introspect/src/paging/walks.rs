//! Walks at one moment, which remember the page and the page directory of the last address.
//!
//! A hit reads a dozen structures of the kernel. Most are in one gigabyte of the kernel's map of memory, so one page directory maps them:
//!
//! ```text
//!  first address    PML4 ─▶ PDPT ─▶ PD ─▶ (PT)
//!  same gigabyte                    PD ─▶ (PT)
//!  same page
//! ```
//!
//! The guest may change its tables at any time, and another vCPU may run on other tables: a value must not outlive the hit that it was made for.

use std::cell::Cell;

use address::{Gpa, Gva};

use super::walk::{Descent, walk_noting};
use super::{PagingState, Translation, VirtReadError, WalkFault, read_virt};
use crate::PhysMemory;

/// The bits of an address that select its entry in a page directory, and those below.
const DIRECTORY_BITS: u32 = 30;

/// The page walks for one hit.
#[derive(Clone, Debug)]
pub struct Walks {
    state: PagingState,
    /// The page of the last address.
    page: Cell<Option<Page>>,
    /// The gigabyte of the last page directory, and the walk up to the page directory.
    directory: Cell<Option<(u64, Descent)>>,
}

/// A page, by its first byte.
#[derive(Clone, Copy, Debug)]
struct Page {
    gva: u64,
    gpa: u64,
    /// The bits of an address within the page.
    within: u64,
}

/// The physical address of a byte, and the number of bytes from there to the end of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Location {
    gpa: Gpa,
    left: u64,
}

impl Page {
    fn new(gva: Gva, found: Translation) -> Self {
        let within = found.page_size.bytes() - 1;
        Self {
            gva: gva.0 & !within,
            gpa: found.gpa.0 & !within,
            within,
        }
    }

    /// The location of `gva`; `None` if the address is in another page.
    const fn location(self, gva: Gva) -> Option<Location> {
        if gva.0 & !self.within != self.gva {
            return None;
        }
        let offset = gva.0 & self.within;
        Some(Location {
            gpa: Gpa(self.gpa | offset),
            left: self.within - offset + 1,
        })
    }
}

impl Walks {
    /// Walks of a vCPU with the registers in `state`.
    #[must_use]
    pub const fn new(state: PagingState) -> Self {
        Self {
            state,
            page: Cell::new(None),
            directory: Cell::new(None),
        }
    }

    /// The registers of the vCPU.
    #[must_use]
    pub const fn state(&self) -> &PagingState {
        &self.state
    }

    /// The location of `gva`, where [`walk`](super::walk()) finds it.
    fn locate<M: PhysMemory + ?Sized>(&self, memory: &M, gva: Gva) -> Result<Location, WalkFault> {
        if let Some(known) = self.page.get()
            && let Some(location) = known.location(gva)
        {
            return Ok(location);
        }
        let found = self.walk(memory, gva)?;
        self.page.set(Some(Page::new(gva, found)));
        Ok(Location {
            gpa: found.gpa,
            left: found.bytes_left_in_page(),
        })
    }

    /// Translates `gva`, from the last page directory on if it maps the address.
    fn walk<M: PhysMemory + ?Sized>(&self, memory: &M, gva: Gva) -> Result<Translation, WalkFault> {
        let gigabyte = gva.0 >> DIRECTORY_BITS;
        match self.directory.get() {
            Some((of, directory)) if of == gigabyte => {
                directory.walk(memory, &self.state, gva, |_| ())
            }
            _ => walk_noting(memory, &self.state, gva, |directory| {
                self.directory.set(Some((gigabyte, directory)));
            }),
        }
    }

    /// Fills `buf` from `gva` on, as [`read_virt`] does.
    ///
    /// # Errors
    ///
    /// See [`read_virt`].
    pub fn read<M: PhysMemory + ?Sized>(
        &self,
        memory: &M,
        gva: Gva,
        buf: &mut [u8],
    ) -> Result<(), VirtReadError> {
        if buf.is_empty() {
            return Ok(());
        }
        let Location { gpa, left } = self.locate(memory, gva)?;
        if buf.len() as u64 > left {
            return read_virt(memory, &self.state, gva, buf);
        }
        memory
            .read(gpa, buf)
            .map_err(|source| VirtReadError::Unreadable { gva, source })
    }

    /// Reads a little-endian 64-bit value.
    ///
    /// # Errors
    ///
    /// See [`read_virt`].
    pub fn read_u64<M: PhysMemory + ?Sized>(
        &self,
        memory: &M,
        gva: Gva,
    ) -> Result<u64, VirtReadError> {
        let Location { gpa, left } = self.locate(memory, gva)?;
        if left < size_of::<u64>() as u64 {
            let mut bytes = [0; size_of::<u64>()];
            read_virt(memory, &self.state, gva, &mut bytes)?;
            return Ok(u64::from_le_bytes(bytes));
        }
        memory
            .read_u64(gpa)
            .map_err(|source| VirtReadError::Unreadable { gva, source })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::walk;
    use super::*;
    use crate::{FlatMemory, Unreadable};

    const PAGE_BYTES: u64 = 0x1000;
    const TABLES: u64 = 6;
    const TABLE: u64 = 0x23;
    const LARGE_PAGE: u64 = 0xe3;
    /// The kernel's map of memory in a kernel without random addresses.
    const MAP: u64 = 0xffff_8880_0000_0000;

    /// Memory of page tables that point to each other, with missing entries, large pages, and entries with reserved bits.
    fn tangle(kinds: &[u8]) -> FlatMemory {
        let mut memory = FlatMemory::zeroed(usize::try_from(TABLES * PAGE_BYTES).expect("small"));
        let entries = (0..TABLES * PAGE_BYTES).step_by(8);
        for (at, kind) in entries.zip(kinds.iter().cycle()) {
            let number = u64::from(*kind);
            let entry = match kind % 8 {
                0 => 0,
                1 => number << 30 | LARGE_PAGE,
                2 => 1 << 52 | u64::MAX >> 12 | TABLE,
                _ => ((number % TABLES) * PAGE_BYTES) | TABLE,
            };
            memory.write(Gpa(at), &entry.to_le_bytes()).expect("room");
        }
        memory
    }

    proptest! {
        #[test]
        fn remembered_tables_lead_where_the_whole_walk_leads(
            kinds in proptest::collection::vec(any::<u8>(), 1..1500),
            addresses in proptest::collection::vec(proptest::array::uniform5(0..3_u64), 1..40),
            five_levels in any::<bool>(),
        ) {
            let memory = tangle(&kinds);
            let state = if five_levels { PagingState::five_level(0) } else { PagingState::four_level(0) };
            let walks = Walks::new(state);
            for [first, second, third, fourth, offset] in addresses {
                let gva = Gva(first << 39 | second << 30 | third << 21 | fourth << 12 | offset << 3);
                let expected = walk(&memory, &state, gva).map(|found| Location {
                    gpa: found.gpa,
                    left: found.bytes_left_in_page(),
                });
                prop_assert_eq!(walks.locate(&memory, gva), expected);
                let (mut bytes, mut expected) = ([0; 16], [0; 16]);
                let read = walks.read(&memory, gva, &mut bytes);
                prop_assert_eq!(read, read_virt(&memory, &state, gva, &mut expected));
                prop_assert_eq!(bytes, expected);
            }
        }
    }

    /// Memory that counts reads.
    struct Counted(FlatMemory, Cell<usize>);

    impl PhysMemory for Counted {
        fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
            self.1.set(self.1.get() + 1);
            self.0.read(gpa, buf)
        }
    }

    #[test]
    fn second_address_in_a_gigabyte_takes_one_read_of_a_table_and_in_a_page_none() {
        let mut memory = FlatMemory::zeroed(0x4000);
        let index = |shift: u32| 8 * (MAP >> shift & 0x1ff);
        for (at, entry) in [
            (index(39), 0x1000 | TABLE),
            (0x1000 + index(30), 0x2000 | TABLE),
            (0x2000, LARGE_PAGE),
            (0x2008, LARGE_PAGE),
        ] {
            memory.write(Gpa(at), &entry.to_le_bytes()).expect("room");
        }
        let memory = Counted(memory, Cell::new(0));
        let walks = Walks::new(PagingState::four_level(0));
        let reads = |at: u64| {
            memory.1.set(0);
            walks.locate(&memory, Gva(at)).expect("mapped");
            memory.1.get()
        };
        let next_page = MAP + (1 << 21);
        assert_eq!([MAP, MAP + 8, next_page].map(reads), [3, 0, 1]);
    }

    #[test]
    fn word_across_two_pages_is_read_from_both() {
        let mut memory = FlatMemory::zeroed(0x8000);
        for (at, entry) in [
            (0, 0x1000 | TABLE),
            (0x1000, 0x2000 | TABLE),
            (0x2000, 0x3000 | TABLE),
            (0x3000, 0x7000 | TABLE),
            (0x3008, 0x4000 | TABLE),
        ] {
            let entry = u64::to_le_bytes(entry);
            memory.write(Gpa(at), &entry).expect("room");
        }
        memory.write(Gpa(0x7ffc), &[1, 2, 3, 4]).expect("room");
        memory.write(Gpa(0x4000), &[5, 6, 7, 8]).expect("room");
        let walks = Walks::new(PagingState::four_level(0));
        let word = walks.read_u64(&memory, Gva(0xffc));
        assert_eq!(word, Ok(0x0807_0605_0403_0201));
    }
}
