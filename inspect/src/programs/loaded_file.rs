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
    whole: OnceLock<Functions>,
    exported: OnceLock<Functions>,
}

impl LoadedFile {
    /// `None` if the headers are not in memory, or are not those of a 64-bit program.
    pub(super) fn read(file: &dyn Bytes) -> Option<Self> {
        Some(Self {
            elf: Elf::read(file)?,
            whole: OnceLock::new(),
            exported: OnceLock::new(),
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
        let tables = [self.whole.get(), self.exported.get()];
        tables.into_iter().flatten().map(Functions::size).sum()
    }

    /// The functions that the first call has found; `None` if no table of them is in memory now. Then the next call looks again.
    pub(super) fn functions(&self, file: &dyn Bytes) -> Option<&Functions> {
        let known = self.whole.get().or_else(|| self.exported.get());
        known.or_else(|| self.functions_now(file))
    }

    /// All functions, or the exported ones as long as the whole table is not in memory.
    pub(super) fn functions_now(&self, file: &dyn Bytes) -> Option<&Functions> {
        let whole = read_once(&self.whole, || Functions::whole(&self.elf, file));
        whole.or_else(|| read_once(&self.exported, || Functions::exported(&self.elf, file)))
    }
}

/// What `known` has, or what `read` finds.
fn read_once(
    known: &OnceLock<Functions>,
    read: impl FnOnce() -> Option<Functions>,
) -> Option<&Functions> {
    if let Some(known) = known.get() {
        return Some(known);
    }
    let read = read()?;
    Some(known.get_or_init(|| read))
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;
    use crate::programs::symbols::Found;
    use crate::programs::tests::At;

    /// A file from which the bytes from an offset on are missing for a while.
    struct Partly(At, Cell<u64>);

    impl Bytes for Partly {
        fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
            let end = at.checked_add(buf.len() as u64)?;
            (end <= self.1.get()).then_some(())?;
            self.0.read(at, buf)
        }
    }

    #[test]
    fn whole_table_that_comes_later_is_found() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = guest_images::workload::build_uprobes(dir.path()).expect("it compiles");
        let bytes = fs::read(path).expect("the program");
        let len = bytes.len() as u64;
        let file = Partly(At(0, bytes), Cell::new(0x1000));
        let loaded = LoadedFile::read(&file).expect("headers");
        assert!(loaded.functions_now(&file).is_none());
        // As if the exported functions had been found meanwhile.
        loaded
            .exported
            .set(Functions::default())
            .expect("the first");
        let find = |functions: Option<&Functions>| functions.expect("a table").find("counted");
        assert_eq!(find(loaded.functions_now(&file)), Found::None);
        file.1.set(len);
        // Names of stacks do not look again.
        assert_eq!(find(loaded.functions(&file)), Found::None);
        assert!(matches!(
            find(loaded.functions_now(&file)),
            Found::At { .. }
        ));
        assert!(matches!(find(loaded.functions(&file)), Found::At { .. }));
    }
}
