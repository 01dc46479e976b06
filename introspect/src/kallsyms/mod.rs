//! The kernel's own symbol tables, found in its image or in guest memory.

mod error;
mod sources;

pub use error::KallsymsError;
pub use sources::{from_elf, from_guest, from_image};
