//! Translation from guest-virtual to guest-physical, like the processor's page walk.
//!
//! [`walk()`] follows 4- and 5-level tables with 4 KiB, 2 MiB and 1 GiB pages and combines the
//! permissions of all levels; [`read_virt`] reads through the tables page by page. Legacy 32-bit
//! tables are not followed: a 64-bit guest leaves 32-bit modes within the first instructions.

mod entry;
mod level;
mod state;
mod virt;
mod walk;
mod walks;

pub use level::{Level, PageSize};
pub use state::PagingState;
pub use virt::{VirtReadError, read_virt};
pub use walk::{EntryAt, Translation, WalkFault, entry_at, walk};
pub use walks::Walks;

#[cfg(test)]
mod tests;
