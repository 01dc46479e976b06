//! The user's kernel file.

use std::borrow::Cow;
use std::path::Path;

use files::ReadError;
use thiserror::Error;
use vm_memory::GuestMemoryMmap;

use super::header::{HeaderError, SetupHeader};
use super::load::{LoadError, LoadedKernel, load_bzimage, load_elf};
use super::payload::{PayloadError, extract_vmlinux};

/// Largest size of a kernel file. A vmlinux with all debug information stays below.
const MAX_KERNEL_FILE_BYTES: u64 = 2 << 30;
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// The format of a kernel file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFormat {
    /// An ELF `vmlinux`.
    Elf,
    /// A bzImage, as distributions ship it.
    BzImage,
}

/// How a kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMethod {
    /// The VMM loads the ELF to its link addresses and enters the kernel there: fast, and no KASLR.
    #[default]
    Direct,
    /// The VMM loads the whole bzImage. The guest decompresses the kernel, with KASLR unless `nokaslr`.
    BzImage,
}

/// Why a kernel file could not be used.
#[derive(Debug, Error)]
pub enum KernelError {
    /// The file could not be read.
    #[error("cannot read the kernel {path}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: ReadError,
    },
    /// The file is no kernel.
    #[error(
        "{path} is not a kernel: {start}; \
         expected an ELF vmlinux (7f 45 4c 46) or a bzImage (\"HdrS\" at offset 0x202)"
    )]
    NotAKernel {
        /// The file.
        path: String,
        /// The first bytes, in words.
        start: String,
    },
    /// The file is a bzImage, but cannot be booted.
    #[error("{path} cannot be booted")]
    Header {
        /// The file.
        path: String,
        /// The cause.
        source: HeaderError,
    },
    /// No ELF could be taken out of the bzImage.
    #[error("cannot unpack the kernel {path}")]
    Payload {
        /// The file.
        path: String,
        /// The cause.
        source: PayloadError,
    },
    /// The kernel could not be put into guest memory.
    #[error("cannot load the kernel {path}")]
    Load {
        /// The file.
        path: String,
        /// The cause.
        source: LoadError,
    },
    /// An ELF was to be booted as a bzImage.
    #[error("{path} is an ELF file and cannot decompress itself; boot it directly")]
    NoBzImage {
        /// The file.
        path: String,
    },
}

/// A kernel, read and recognised, but not unpacked.
#[derive(Clone, Debug)]
pub struct KernelFile {
    path: String,
    bytes: Vec<u8>,
    /// Present in a bzImage.
    header: Option<SetupHeader>,
}

impl KernelFile {
    /// Reads a kernel.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is not a regular file, has more than 2 GiB, or is neither an ELF file nor a bootable bzImage.
    pub fn open(path: &Path) -> Result<Self, KernelError> {
        let name = path.display().to_string();
        let bytes =
            files::read(path, MAX_KERNEL_FILE_BYTES).map_err(|source| KernelError::Read {
                path: name.clone(),
                source,
            })?;
        Self::from_bytes(&name, bytes)
    }

    /// Recognises a kernel that is already in memory. Errors name the kernel `name`.
    ///
    /// # Errors
    ///
    /// When the bytes are neither an ELF file nor a bootable bzImage.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, KernelError> {
        let path = name.to_owned();
        if bytes.starts_with(&ELF_MAGIC) {
            return Ok(Self {
                path,
                bytes,
                header: None,
            });
        }
        match SetupHeader::parse(&bytes) {
            Ok(header) => Ok(Self {
                path,
                bytes,
                header: Some(header),
            }),
            Err(HeaderError::Missing) => Err(KernelError::NotAKernel {
                path,
                start: describe_start(&bytes),
            }),
            Err(source) => Err(KernelError::Header { path, source }),
        }
    }

    /// The format of the file.
    #[must_use]
    pub fn format(&self) -> KernelFormat {
        match self.header {
            Some(_) => KernelFormat::BzImage,
            None => KernelFormat::Elf,
        }
    }

    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The ELF `vmlinux`: the file itself, or the unpacked payload.
    ///
    /// Unpacking takes from 0.1 s (lz4) to seconds (bzip2); keep the result.
    ///
    /// # Errors
    ///
    /// When a bzImage's payload cannot be unpacked.
    pub fn vmlinux(&self) -> Result<Cow<'_, [u8]>, KernelError> {
        match self.header {
            None => Ok(Cow::Borrowed(&self.bytes)),
            Some(_) => extract_vmlinux(&self.bytes)
                .map(Cow::Owned)
                .map_err(|source| KernelError::Payload {
                    path: self.path.clone(),
                    source,
                }),
        }
    }

    /// Puts the kernel into guest memory, which must be zeroed.
    ///
    /// For a direct boot, `vmlinux` is the result of [`KernelFile::vmlinux`].
    /// [`BootMethod::BzImage`] ignores `vmlinux`.
    ///
    /// # Errors
    ///
    /// When the kernel does not fit, or the format does not match `method`.
    pub fn load(
        &self,
        memory: &GuestMemoryMmap,
        method: BootMethod,
        vmlinux: &[u8],
    ) -> Result<LoadedKernel, KernelError> {
        let failed = |source| KernelError::Load {
            path: self.path.clone(),
            source,
        };
        match (method, &self.header) {
            (BootMethod::BzImage, None) => Err(KernelError::NoBzImage {
                path: self.path.clone(),
            }),
            (BootMethod::BzImage, Some(_)) => load_bzimage(memory, &self.bytes).map_err(failed),
            (BootMethod::Direct, header) => {
                let mut kernel = load_elf(memory, vmlinux).map_err(failed)?;
                // The bzImage's own header holds the kernel's real limits.
                if let Some(header) = header {
                    kernel.header = header.clone();
                }
                Ok(kernel)
            }
        }
    }
}

fn describe_start(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "it is empty".to_owned();
    }
    let words: Vec<_> = bytes
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("it starts with {}", words.join(" "))
}

#[cfg(test)]
mod tests;
