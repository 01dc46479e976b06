//! Files that programs map: which file it is, and where its pages are.

use address::Gva;

/// The identity of a file. The kernel gives the memory of a file that is gone to another, which has another number or generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The `address_space`.
    pub(super) pages: Gva,
    pub(super) file_system: u64,
    pub(super) number: u64,
    pub(super) generation: u64,
}

impl FileId {
    /// The `address_space`, which has the pages of the file.
    #[must_use]
    pub fn pages(&self) -> Gva {
        self.pages
    }

    /// Whether the file is `other`, maybe in other memory: the kernel frees the inode of an unused file, and reads it again.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        let pages = other.pages;
        Self { pages, ..*self } == *other
    }
}

/// The version of a file's contents. Contents of the same size that were written within the same tick of the kernel's clock have the same version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileVersion {
    /// Bytes.
    pub(super) size: u64,
    /// The time of the last write: seconds, and nanoseconds.
    pub(super) written: (u64, u64),
}

/// An open or mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// The identity.
    pub id: FileId,
    /// The version of the contents.
    pub version: FileVersion,
    /// The path, as `/proc/PID/maps` shows it.
    pub path: String,
    /// Where the pages of the file are.
    pub storage: Storage,
}

/// Where the pages of a file are that programs map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the page cache of the file itself.
    PageCache,
    /// In the page cache of another file, below an overlay. Programs map that file instead.
    Overlay,
    /// Huge pages.
    HugePages,
    /// In memory that keeps its contents (DAX).
    Persistent,
    /// In the page cache of a file of FUSE, whose server may replace them.
    Fuse,
}
