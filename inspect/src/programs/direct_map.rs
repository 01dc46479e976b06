//! The kernel's map of all physical memory.

use address::{Gpa, Gva};
use introspect::{PhysMemory, Unreadable};

use crate::KernelView;
use crate::reads::Reads;

/// The start of the direct map in a kernel that does not move it, by the number of levels.
const FIXED_MAP: [u64; 2] = [0xffff_8880_0000_0000, 0xff11_0000_0000_0000];

/// The kernel's direct map of physical memory.
#[derive(Clone, Copy, Debug)]
pub struct DirectMap {
    /// The address of guest-physical address 0.
    pub start: Gva,
    pub(super) five_levels: bool,
}

/// Guest-physical memory, through the direct map.
pub(super) struct Mapped<'r> {
    pub(super) reads: &'r Reads<'r>,
    pub(super) map: DirectMap,
}

impl DirectMap {
    /// Where the kernel says. A kernel that moves the map has the address in `page_offset_base`. `None` if the kernel's memory cannot be read.
    #[must_use]
    pub fn find(view: &KernelView<'_>) -> Option<Self> {
        let five_levels = match view.address_of("__pgtable_l5_enabled") {
            Some(at) => view.u32(at).ok()? != 0,
            None => false,
        };
        let start = match view.address_of("page_offset_base") {
            Some(at) => view.pointer(at).ok()?,
            None => Gva(FIXED_MAP[usize::from(five_levels)]),
        };
        Some(Self { start, five_levels })
    }
}

impl PhysMemory for Mapped<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let len = buf.len();
        let at = self.map.start.wrapping_add(gpa.0);
        let read = self.reads.fill(at, buf);
        read.map_err(|_| Unreadable { gpa, len })
    }
}
