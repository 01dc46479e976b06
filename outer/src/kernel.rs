//! The kernel of the outer Linux.

use guest_images::{CachedFileError, Image};
use thiserror::Error;
use vmm::boot::{KernelError, KernelFile};

/// The kernel of the outer Linux, in the catalog of images.
pub const IMAGE: &str = "debian-6.1";

/// Why a kernel cannot be unpacked.
#[derive(Debug, Error)]
pub enum VmlinuxError {
    /// The file cannot be read or has changed.
    #[error(transparent)]
    Read(#[from] CachedFileError),
    /// The file is no kernel, or cannot be unpacked.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// The unpacked kernel of `image`, an ELF file: unpacking under emulation takes seconds in QEMU, and minutes in Bochs or in a guest.
///
/// # Errors
///
/// The image's file cannot be read or unpacked.
pub fn vmlinux(image: &Image) -> Result<Vec<u8>, VmlinuxError> {
    let file = image.main_file();
    let kernel = KernelFile::from_bytes(&file.path().display().to_string(), file.read()?)?;
    Ok(kernel.vmlinux()?.into_owned())
}
