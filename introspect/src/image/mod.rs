//! The kernel image: link-time addresses, contents and version.
//!
//! [`KernelImage`] is the decompressed vmlinux; [`GuestImage`] is the same kernel in a guest's
//! memory. Both return bytes by link-time address ([`ImageSource`]), so that readers of the
//! kernel's tables work with either. [`KernelLayout`] says which addresses are text, and which
//! addresses the kernel frees after boot.

mod build_id;
mod elf;
mod guest;
mod layout;
mod reader;
mod source;

pub use build_id::BuildId;
pub use elf::{ImageError, KernelImage, Segment};
pub use guest::GuestImage;
pub use layout::KernelLayout;
pub(crate) use reader::ImageReader;
pub use source::{ImageSource, NotInImage};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
