//! The kernel's half of the address space, translated without a request to the vCPU.
//!
//! A read of CR3 is a request to KVM, and costs more than all other work at a hit. A kernel maps its half of the address space alike in the
//! page tables of every process. The kernel's own tables therefore translate an address of the half, with any CR3. Only the address of the
//! tables is stored: each access walks the tables anew, like a processor with an empty TLB.
//!
//! The vCPU must be in the kernel. The condition is true if the vCPU executes the plant's byte at the kernel's own address, mapped for ring
//! 0 only. The implementor of [`KnowsTables`] excludes the kernel's entry code, which may run on the page tables of a program. If the
//! kernel's tables have no answer, the caller asks the vCPU: above all in case of a fault.

use std::fmt;

use address::{Gpa, Gva};
use introspect::{PagingState, Translation, walk};

use crate::guest::GuestMemory;
use crate::plant::{Planter, Spot};

/// Access to the kernel's own page tables.
pub trait KnowsTables {
    /// The tables, if they stay in place, and a vCPU in the kernel's code at `at` uses either the kernel's or a process's tables. Called
    /// for accesses to memory at any hit: the call never waits for a lock.
    fn kernel_tables(&self, at: Gva) -> Option<PagingState>;
}

/// The kernel's own page tables, for a vCPU at a plant.
#[derive(Clone, Copy)]
pub struct KernelTables<'a> {
    known_to: &'a dyn KnowsTables,
    /// The address of the plant.
    at: Gva,
    gpa: Gpa,
}

impl fmt::Debug for KernelTables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelTables").field(&self.at).finish()
    }
}

/// Whether `at` is in the upper half.
const fn is_kernels(at: Gva) -> bool {
    at.0 >> 63 != 0
}

impl<'a> KernelTables<'a> {
    /// The tables for a vCPU that has executed the byte of the plant at `at`, in memory at `spot`.
    #[must_use]
    pub fn for_hit(known_to: &'a dyn KnowsTables, at: Gva, spot: Spot) -> Self {
        Self {
            known_to,
            at,
            gpa: spot.gpa,
        }
    }

    /// The translation of `at`, if the address is in the kernel's half, on a page for ring 0 only.
    pub fn translate(&self, memory: &dyn GuestMemory, at: Gva) -> Option<Translation> {
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

    /// Whether the tables map the plant's address to the plant, for ring 0 only. In Linux, no code in the upper half can be both executed
    /// by a program and probed.
    fn is_for_ring_0(&self, memory: &dyn GuestMemory, paging: &PagingState) -> bool {
        walk(memory, paging, self.at).is_ok_and(|found| found.gpa == self.gpa && !found.user)
    }

    /// Reads from `at` on, within a page. Returns whether the read succeeded.
    pub fn read(&self, planter: &Planter, at: Gva, buf: &mut [u8]) -> bool {
        let found = self.translate(planter.memory(), at);
        let found = found.filter(|found| found.bytes_left_in_page() >= buf.len() as u64);
        found.is_some_and(|found| planter.read_own(found.gpa, buf).is_ok())
    }
}
