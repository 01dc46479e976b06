//! The guest kernel's address space.

use std::ops::Range;

use address::Gva;
use introspect::PagingState;

/// The guest kernel's page tables and image.
#[derive(Clone, Debug)]
pub struct KernelSpace {
    /// The kernel's own page tables.
    pub paging: PagingState,
    /// The addresses of the running image, from the first byte to the last.
    pub image: Range<Gva>,
    /// The state of the page tables.
    pub tables: Tables,
}

/// The state of the kernel's page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// The kernel is still going to clear the entries around its image (`cleanup_highmap`) and to decide on KPTI. Only the
    /// entries above the fixed mappings stay unchanged.
    Early,
    /// The kernel has finished the setup.
    Settled,
}
