//! The errors of reading BTF.

use thiserror::Error;

use crate::NotInImage;

/// Why bytes are not BTF, or where none were found.
#[derive(Clone, Debug, Error)]
pub enum BtfError {
    /// The file cannot be read as ELF.
    #[error("cannot look for types in this file")]
    Elf(#[source] object::read::Error),
    /// Neither a section nor symbols mark BTF.
    #[error("the kernel has no BTF: built without CONFIG_DEBUG_INFO_BTF")]
    Missing,
    /// The symbols mark a range outside the image.
    #[error("cannot read the kernel's BTF")]
    Unreadable(#[from] NotInImage),
    /// The blob is larger than any kernel's types.
    #[error("{bytes} bytes are too many for a kernel's BTF")]
    TooLarge {
        /// The size in bytes.
        bytes: u64,
    },
    /// The first bytes belong to another format, or to BTF for another byte order.
    #[error("the bytes begin with {magic:#06x}, version {version}, which is not little-endian BTF")]
    Header {
        /// The first two bytes.
        magic: u16,
        /// The third.
        version: u8,
    },
    /// Names of a module's types that the guest has to wait for.
    #[error("the names of the types have more than {most} bytes together")]
    Names {
        /// The limit.
        most: usize,
    },
    /// The numbers of a module's types begin behind the last of the kernel's, which cannot be counted.
    #[error(
        "the kernel's BTF has records of an unknown kind, so that the types of modules cannot be numbered"
    )]
    IncompleteBase,
    /// The header points out of the blob.
    #[error("the BTF's {section} section is not within its {bytes} bytes")]
    Section {
        /// "header", "type" or "string".
        section: &'static str,
        /// The blob's size in bytes.
        bytes: usize,
    },
}
