//! The kernel's half of the address space, without asking the vCPU for its page tables.
//!
//! To learn CR3 is a request to KVM, which costs more than all else that is done at a hit. A kernel maps its half of the
//! address space alike in the page tables of every process, so its own tables say where an address of that half lies,
//! whatever CR3 is. Nothing is remembered of them but where they begin: each access walks them anew, as a processor does
//! that has forgotten everything.
//!
//! The vCPU must be in the kernel: that is so when it executes the plant's byte where the kernel has it, for ring 0 only.
//! Whoever [`KnowsTables`] sees to it that this is not the code by which the kernel is entered, which may run on the tables
//! of a program. What cannot be told from the kernel's tables is left to be asked of the vCPU, a fault before all.

use std::fmt;

use introspect::{Gpa, Gva, PagingState, Translation, walk};

use crate::guest::GuestMemory;
use crate::plant::Planter;

use super::Plant;

/// Who knows the kernel's own page tables.
pub(crate) trait KnowsTables {
    /// They, if they stay where they are, and a vCPU in the kernel's code at `at` has none but the kernel's or a process's
    /// in force. Called when memory is looked at, at any hit: no lock is waited for.
    fn kernel_tables(&self, at: Gva) -> Option<PagingState>;
}

/// The kernel's own page tables, for a vCPU that stands at a plant.
#[derive(Clone, Copy)]
pub(crate) struct KernelTables<'a> {
    known_to: &'a dyn KnowsTables,
    /// Where the plant is.
    at: Gva,
    gpa: Gpa,
}

impl fmt::Debug for KernelTables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelTables").field(&self.at).finish()
    }
}

/// The upper half.
const fn is_kernels(at: Gva) -> bool {
    at.0 >> 63 != 0
}

impl<'a> KernelTables<'a> {
    /// For a vCPU that has executed the byte of `plant` at `rip`: through another mapping of it, nothing is known.
    pub(crate) fn for_hit(known_to: &'a dyn KnowsTables, plant: &Plant, rip: Gva) -> Option<Self> {
        (rip == plant.at).then_some(Self {
            known_to,
            at: plant.at,
            gpa: plant.spot.gpa,
        })
    }

    /// Where `at` lies, if it is of the kernel's half and a page for ring 0 only.
    pub(crate) fn translate(&self, memory: &dyn GuestMemory, at: Gva) -> Option<Translation> {
        if !is_kernels(at) {
            return None;
        }
        let paging = self.known_to.kernel_tables(self.at)?;
        if !is_kernels(self.at) && !self.is_for_ring_0(memory, &paging) {
            return None;
        }
        let found = walk(memory, &paging, at).ok()?;
        (!found.user).then_some(found)
    }

    /// Whether the plant is where the tables say, and none but ring 0 can execute it. Linux has nothing in the upper half
    /// that a program can execute and that can be probed.
    fn is_for_ring_0(&self, memory: &dyn GuestMemory, paging: &PagingState) -> bool {
        walk(memory, paging, self.at).is_ok_and(|found| found.gpa == self.gpa && !found.user)
    }

    /// Reads from `at` on, within a page; whether that has been possible.
    pub(crate) fn read(&self, planter: &Planter, at: Gva, buf: &mut [u8]) -> bool {
        let found = self.translate(planter.memory(), at);
        let found = found.filter(|found| found.bytes_left_in_page() >= buf.len() as u64);
        found.is_some_and(|found| planter.read_own(found.gpa, buf).is_ok())
    }
}
