//! A program's memory, through its page tables.
//!
//! The page tables are in the kernel's direct map of physical memory. Tables of 4 and 5 levels are followed, with the tables
//! that map the kernel, too: with page-table isolation the kernel has a second set of tables for a program in user mode, which maps the
//! same pages of the program.

use address::Gva;
use introspect::btf::Slot;
use introspect::{Btf, PagingState, read_virt};

use super::direct_map::{DirectMap, Mapped};
use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// The first address behind a program's half, with page tables of 4 or 5 levels.
pub(super) const PROGRAM_END: u64 = 1 << 56;

/// The member of `mm_struct` with the page tables.
#[derive(Debug)]
pub(crate) struct SpaceLayout {
    tables: Slot,
}

/// The address space of a program.
pub(crate) struct AddressSpace<'r> {
    memory: Mapped<'r>,
    paging: PagingState,
}

impl SpaceLayout {
    pub(crate) fn new(btf: &Btf) -> Result<Self, NoType> {
        let tables = StructType::named(btf, "mm_struct")?.slot("pgd")?;
        Ok(Self { tables })
    }

    /// The address space with the `mm_struct` at `memory`.
    pub(crate) fn space<'r>(
        &self,
        reads: &'r Reads<'r>,
        map: DirectMap,
        memory: Gva,
    ) -> Result<AddressSpace<'r>, ReadsError> {
        let root = reads.number(memory, self.tables)?.wrapping_sub(map.start.0);
        let paging = match map.five_levels {
            true => PagingState::five_level(root),
            false => PagingState::four_level(root),
        };
        let memory = Mapped { reads, map };
        Ok(AddressSpace { memory, paging })
    }
}

impl AddressSpace<'_> {
    /// Fills `buf` from `at` on; `None` if a page of the range is not in memory, or is the kernel's.
    pub(crate) fn read(&self, at: Gva, buf: &mut [u8]) -> Option<()> {
        let end = at.0.checked_add(buf.len() as u64);
        end.filter(|end| *end <= PROGRAM_END)?;
        read_virt(&self.memory, &self.paging, at, buf).ok()
    }
}
