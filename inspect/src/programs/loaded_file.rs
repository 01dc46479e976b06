//! A file that programs have mapped.

use std::sync::{Arc, OnceLock};

use address::Gva;

use super::elf::{Bytes, Elf};
use super::symbols::Functions;

/// A file with code, as far as it is the same for all programs.
#[derive(Debug)]
pub(super) struct LoadedFile {
    elf: Elf,
    /// Read for the first name.
    functions: OnceLock<Functions>,
}

impl LoadedFile {
    /// `None` if the headers are not in memory, or are not those of a 64-bit program.
    pub(super) fn read(file: &dyn Bytes) -> Option<Self> {
        Some(Self {
            elf: Elf::read(file)?,
            functions: OnceLock::new(),
        })
    }

    pub(super) const fn elf(&self) -> &Elf {
        &self.elf
    }

    /// The offset in the file of the byte at `address`.
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.elf.offset_of(address)
    }

    /// The bytes that the functions take.
    pub(super) fn size(&self) -> usize {
        self.functions.get().map_or(0, Functions::size)
    }

    /// The functions; `None` if no table of them is in memory now. Then the next call looks again.
    pub(super) fn functions(&self, file: &dyn Bytes) -> Option<&Functions> {
        if let Some(known) = self.functions.get() {
            return Some(known);
        }
        let read = Functions::read(&self.elf, file)?;
        Some(self.functions.get_or_init(|| read))
    }
}

/// A file as a program has it mapped.
#[derive(Clone, Debug)]
pub(super) struct MappedFile {
    /// The `address_space`.
    pub(super) pages: Gva,
    pub(super) path: Option<Arc<str>>,
}

/// A file at a place in a program.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<LoadedFile>,
    /// The file; `None` for the kernel's own library.
    pub(super) mapped: Option<MappedFile>,
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
        mapped: Option<MappedFile>,
        start: Gva,
        offset: u64,
        at: Gva,
    ) -> Option<Self> {
        let linked = file.elf.address_of(offset)?;
        Some(Self {
            file,
            mapped,
            start,
            offset,
            bias: at.0.wrapping_sub(linked),
        })
    }

    /// The address of the sorted table of unwind rules.
    pub(super) fn rules(&self) -> Option<u64> {
        let table = self.file.elf.unwind?;
        Some(table.wrapping_add(self.bias))
    }
}
