//! The functions and marks of files that programs map, by name.

use std::sync::Arc;

use super::elf::Bytes;
use super::files::FileKey;
use super::loaded_file::LoadedFile;
use super::mapped_file::FileReader;
use super::mark_counter::{self, CounterReaders};
use super::marks::{self, FileMarks, MarkCounter};
use super::no_code::NoCode;
use super::open_file::FileId;
use super::page_cache::CachedFile;
use super::symbols::Found;

/// A function of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFunction {
    /// The offset in the file of the first byte.
    pub offset: u64,
    /// The number of bytes; 0 if the file does not say.
    pub bytes: u64,
    /// The name.
    pub name: String,
}

impl FileFunction {
    /// The offset in the file of the byte `within` the function.
    ///
    /// # Errors
    ///
    /// If the function has fewer bytes.
    pub fn at(&self, within: u64) -> Result<u64, NoCode> {
        let (name, size) = (self.name.clone(), self.bytes);
        let at = self.offset.checked_add(within);
        at.filter(|_| size == 0 || within < size)
            .ok_or(NoCode::Outside { name, size })
    }
}

impl FileReader<'_> {
    /// The function `name` of the file.
    ///
    /// # Errors
    ///
    /// If the file has no such function, or the tables are not in memory.
    pub fn function(&self, file: &FileId, name: &str) -> Result<FileFunction, NoCode> {
        let bytes = InCache(self.cached(file));
        let loaded = self.loaded(file, &bytes).ok_or(NoCode::NoHeaders)?;
        let functions = loaded.functions_now(&bytes).ok_or(NoCode::NoFunctions)?;
        let name = name.to_owned();
        match functions.find(&name) {
            Found::At { address, size } => match loaded.offset_of(address) {
                Some(offset) => Ok(FileFunction {
                    offset,
                    bytes: size,
                    name,
                }),
                None => Err(NoCode::NotLoaded(name)),
            },
            Found::None => Err(NoCode::NoFunction(name)),
            Found::Several => Err(NoCode::Several(name)),
            Found::Indirect => Err(NoCode::Indirect(name)),
        }
    }

    /// Each function with a name of `pattern`, by address.
    ///
    /// # Errors
    ///
    /// If the file has no such function, or the tables are not in memory.
    pub fn functions(&self, file: &FileId, pattern: &str) -> Result<Vec<FileFunction>, NoCode> {
        let bytes = InCache(self.cached(file));
        let loaded = self.loaded(file, &bytes).ok_or(NoCode::NoHeaders)?;
        let functions = loaded.functions_now(&bytes).ok_or(NoCode::NoFunctions)?;
        let found = functions.matching(pattern).into_iter();
        let found = found.filter_map(|function| {
            Some(FileFunction {
                offset: loaded.offset_of(function.address)?,
                bytes: function.size,
                name: function.name,
            })
        });
        let found: Vec<FileFunction> = found.collect();
        match found.is_empty() {
            true => Err(NoCode::NoMatch(pattern.to_owned())),
            false => Ok(found),
        }
    }

    /// The marks with names of the patterns.
    ///
    /// # Errors
    ///
    /// If the file has no such mark, or the notes are not in memory.
    pub fn marks(&self, file: &FileId, provider: &str, name: &str) -> Result<FileMarks, NoCode> {
        let bytes = InCache(self.cached(file));
        let loaded = self.loaded(file, &bytes).ok_or(NoCode::NoHeaders)?;
        let found = marks::read(loaded.elf(), &bytes, provider, name).ok_or(NoCode::NoMarks)?;
        match (found.marks.is_empty(), found.unusable) {
            (true, 0) => Err(NoCode::NoMark(format!("{provider}:{name}"))),
            (true, notes) => Err(NoCode::UnusableMarks {
                name: format!("{provider}:{name}"),
                notes,
            }),
            (false, _) => Ok(found),
        }
    }

    /// The pages of the file with instructions that read `counters`: the pages of `known`, and pages that have come into memory since.
    #[must_use]
    pub fn counter_readers<'c>(
        &self,
        file: &FileId,
        counters: impl Iterator<Item = &'c MarkCounter>,
        known: &CounterReaders,
    ) -> CounterReaders {
        mark_counter::readers(&InCache(self.cached(file)), counters, known)
    }

    /// The headers and functions of the file, which are read once for each version of the contents.
    fn loaded(&self, file: &FileId, bytes: &InCache<'_>) -> Option<Arc<LoadedFile>> {
        let key = FileKey::read(&self.layout.cache, &self.reads, file.pages)?;
        let known = &self.layout.known;
        known.bound();
        known.get_or_read(key, || LoadedFile::read(bytes))
    }
}

/// The bytes of a file that are in memory.
struct InCache<'f>(CachedFile<'f>);

impl Bytes for InCache<'_> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        self.0.read(at, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::programs::mapped_file::tests::{open, with};
    use crate::programs::reader_tests::{cache, kernel};

    #[test]
    fn file_without_functions_says_so() {
        let mut fake = kernel();
        let file = open(&fake).id;
        let function = |fake: &Fake| with(fake, |reader| reader.function(&file, "main"));
        assert_eq!(function(&fake), Err(NoCode::NoHeaders));
        cache(&mut fake);
        assert_eq!(function(&fake), Err(NoCode::NoFunctions));
    }
}
