//! The functions of files that programs map, by name.

use std::sync::Arc;

use super::elf::Bytes;
use super::files::FileKey;
use super::loaded_file::LoadedFile;
use super::mapped_file::FileReader;
use super::no_code::NoCode;
use super::open_file::FileId;
use super::page_cache::CachedFile;
use super::symbols::Found;

impl FileReader<'_> {
    /// The offset in the file of the byte `offset` of the function `name`.
    ///
    /// # Errors
    ///
    /// If the file has no such function, or the tables are not in memory.
    pub fn function(&self, file: &FileId, name: &str, offset: u64) -> Result<u64, NoCode> {
        let bytes = InCache(self.cached(file));
        let loaded = self.loaded(file, &bytes).ok_or(NoCode::NoHeaders)?;
        let functions = loaded.functions(&bytes).ok_or(NoCode::NoFunctions)?;
        let name = name.to_owned();
        match functions.find(&name) {
            Found::At { size, .. } if offset >= size && size > 0 => {
                Err(NoCode::Outside { name, size })
            }
            Found::At { address, .. } => {
                let at = loaded.offset_of(address.wrapping_add(offset));
                at.ok_or(NoCode::NotLoaded(name))
            }
            Found::None => Err(NoCode::NoFunction(name)),
            Found::Several => Err(NoCode::Several(name)),
            Found::Indirect => Err(NoCode::Indirect(name)),
        }
    }

    /// The offset in the file and the name of each function with a name of `pattern`.
    ///
    /// # Errors
    ///
    /// If the file has no such function, or the tables are not in memory.
    pub fn functions(&self, file: &FileId, pattern: &str) -> Result<Vec<(u64, String)>, NoCode> {
        let bytes = InCache(self.cached(file));
        let loaded = self.loaded(file, &bytes).ok_or(NoCode::NoHeaders)?;
        let functions = loaded.functions(&bytes).ok_or(NoCode::NoFunctions)?;
        let found = functions.matching(pattern).into_iter();
        let found = found.filter_map(|(address, name)| Some((loaded.offset_of(address)?, name)));
        let found: Vec<(u64, String)> = found.collect();
        match found.is_empty() {
            true => Err(NoCode::NoMatch(pattern.to_owned())),
            false => Ok(found),
        }
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
        let function = |fake: &Fake| with(fake, |reader| reader.function(&file, "main", 0));
        assert_eq!(function(&fake), Err(NoCode::NoHeaders));
        cache(&mut fake);
        assert_eq!(function(&fake), Err(NoCode::NoFunctions));
    }
}
