//! A file that programs have mapped.

use std::sync::{Arc, OnceLock};

use address::Gva;

use super::elf::{Bytes, Elf};
use super::symbols::Functions;

/// A file with code.
#[derive(Debug)]
pub(super) struct LoadedFile {
    pub(super) path: Option<String>,
    /// `None` if the headers are not in memory, or are not those of a 64-bit program.
    elf: Option<Elf>,
    /// Read for the first name.
    functions: OnceLock<Functions>,
}

impl LoadedFile {
    pub(super) fn read(file: &dyn Bytes, path: Option<String>) -> Self {
        Self {
            path,
            elf: Elf::read(file),
            functions: OnceLock::new(),
        }
    }

    /// The bytes that the functions take.
    pub(super) fn size(&self) -> usize {
        self.functions.get().map_or(0, Functions::size)
    }

    /// The functions; the arguments are those of [`Functions::read`].
    pub(super) fn functions(&self, file: &dyn Bytes, memory: &dyn Bytes, bias: u64) -> &Functions {
        self.functions.get_or_init(|| {
            let functions = self.elf.as_ref();
            functions.map_or_else(Functions::default, |elf| {
                Functions::read(elf, file, memory, bias)
            })
        })
    }
}

/// A file at a place in a program.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<LoadedFile>,
    /// The file's `address_space`; `None` for the kernel's own library.
    pub(super) pages: Option<Gva>,
    /// The beginning of the mapping.
    pub(super) start: Gva,
    /// The offset in the file of the address that was looked for.
    pub(super) offset: u64,
    /// The distance between addresses in memory and in the file.
    pub(super) bias: u64,
}

impl Opened {
    /// The file whose byte at `offset` is at `at`; `None` if the headers do not say that the byte is loaded.
    pub(super) fn new(
        file: Arc<LoadedFile>,
        pages: Option<Gva>,
        start: Gva,
        offset: u64,
        at: Gva,
    ) -> Option<Self> {
        let linked = file.elf.as_ref()?.address_of(offset)?;
        Some(Self {
            file,
            pages,
            start,
            offset,
            bias: at.0.wrapping_sub(linked),
        })
    }

    /// The address of the sorted table of unwind rules.
    pub(super) fn rules(&self) -> Option<u64> {
        let table = self.file.elf.as_ref()?.unwind?;
        Some(table.wrapping_add(self.bias))
    }
}
