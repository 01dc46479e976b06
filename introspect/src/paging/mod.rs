//! From guest-virtual to guest-physical, the way the processor walks its tables.
//!
//! [`walk()`] follows 4- and 5-level tables with 4 KiB, 2 MiB and 1 GiB pages and gathers the
//! permissions that all levels together leave; [`read_virt`] reads through it page by page. Legacy
//! 32-bit tables are not followed: a 64-bit guest leaves those modes within its first instructions.

mod entry;
mod state;
mod virt;
mod walk;

pub use state::PagingState;
pub use virt::{VirtReadError, read_virt};
pub use walk::{EntryAt, Level, PageSize, Translation, WalkFault, entry_at, walk};

#[cfg(test)]
mod tests;
