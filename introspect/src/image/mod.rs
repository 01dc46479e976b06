//! The kernel's own file: where it is linked, what it holds, which version it is.
//!
//! [`KernelImage`] is the decompressed vmlinux; [`GuestImage`] is the same kernel as it lies in a
//! guest's memory. Both give bytes by link-time address ([`ImageSource`]), so that the tables
//! inside are read the same way from either. [`KernelLayout`] says which addresses are text, and
//! which are gone after boot.

mod elf;
mod guest;
mod layout;
mod source;

pub use elf::{ImageError, KernelImage, Segment};
pub use guest::GuestImage;
pub use layout::KernelLayout;
pub use source::{ImageSource, NotInImage};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
