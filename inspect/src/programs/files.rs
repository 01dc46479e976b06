//! The files of programs that have been read: programs share libraries.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use address::Gva;

use super::loaded_file::LoadedFile;
use super::open_file::{FileId, FileVersion};
use super::page_cache::PageCacheLayout;
use crate::reads::Reads;

/// The most files that are kept, and the most bytes of their function names.
const MAX_FILES: usize = 256;
const MAX_BYTES: usize = 64 << 20;

/// A file of the guest with its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileKey {
    id: FileId,
    version: FileVersion,
}

/// Files read so far.
#[derive(Debug, Default)]
pub(crate) struct ProgramFiles(Mutex<HashMap<FileKey, Arc<LoadedFile>>>);

impl FileKey {
    /// The file with the `address_space` at `pages`.
    pub(super) fn read(layout: &PageCacheLayout, reads: &Reads<'_>, pages: Gva) -> Option<Self> {
        let inode = reads.pointer(pages, layout.inode).ok()??;
        Some(Self {
            id: layout.identity(reads, pages, inode).ok()?,
            version: layout.version(reads, inode).ok()?,
        })
    }
}

impl ProgramFiles {
    pub(super) fn get_or_read(
        &self,
        key: FileKey,
        read: impl FnOnce() -> Option<LoadedFile>,
    ) -> Option<Arc<LoadedFile>> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&key).cloned();
        known.or_else(|| {
            let file = Arc::new(read()?);
            let mut files = lock();
            if files.len() >= MAX_FILES {
                files.clear();
            }
            files.insert(key, Arc::clone(&file));
            Some(file)
        })
    }

    /// Drops the files if they have grown too large.
    pub(super) fn bound(&self) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: usize = files.values().map(|file| file.size()).sum();
        if bytes > MAX_BYTES {
            files.clear();
        }
    }
}
