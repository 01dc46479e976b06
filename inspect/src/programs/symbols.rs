//! The function names of a program's file.
//!
//! Both tables are read from the file's pages in the page cache: a program may change its own copy of them, and the names are kept for all programs.
//! The table of a file that was not stripped is found only if its pages are in memory: always in an initramfs and in tmpfs. The pages of the dynamic
//! symbols are in memory if the loader has used them.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

use introspect::glob_matches;

use super::elf::{Bytes, Elf};

/// The size of a symbol.
const SYMBOL_BYTES: usize = 24;
/// The most bytes of symbols and of names: 170 000 functions.
const MAX_TABLE_BYTES: u64 = 4 << 20;
/// The longest name shown.
const MAX_NAME_BYTES: usize = 256;
/// `STT_FUNC` and `STT_GNU_IFUNC`.
const FUNCTION: u8 = 2;
const INDIRECT_FUNCTION: u8 = 10;
/// Tags of the dynamic section: `DT_HASH`, `DT_STRTAB`, `DT_SYMTAB`, `DT_STRSZ`, `DT_GNU_HASH`.
const HASH: u64 = 4;
const NAMES: u64 = 5;
const SYMBOLS: u64 = 6;
const NAMES_SIZE: u64 = 10;
const GNU_HASH: u64 = 0x6fff_fef5;
/// A dynamic section has some thirty entries.
const MAX_ENTRIES: usize = 128;
/// The most words of a hash table that are followed.
const MAX_HASH_WORDS: u64 = 1 << 18;

/// The functions of a file, sorted by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Functions {
    functions: Vec<Function>,
    names: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Function {
    address: u64,
    size: u64,
    name: u32,
    /// Whether the address is that of a function that chooses the function, when the program starts.
    is_indirect: bool,
}

/// A function whose name is like a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedFunction {
    pub(super) address: u64,
    /// 0 if the file does not say.
    pub(super) size: u64,
    pub(super) name: String,
}

/// A function of the wanted name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    At {
        address: u64,
        /// 0 if the file does not say.
        size: u64,
    },
    None,
    /// The name belongs to functions at several addresses.
    Several,
    /// The function is chosen when the program starts.
    Indirect,
}

impl Functions {
    /// All functions of the file with the headers `elf`; `None` if the file was stripped, or the table is not in memory.
    pub(super) fn whole(elf: &Elf, file: &dyn Bytes) -> Option<Self> {
        let sections = elf.symbol_sections(file)?;
        let symbols = table(file, &sections.symbols)?;
        Some(Self::sorted(&symbols, table(file, &sections.names)?))
    }

    /// The functions that the file exports; `None` if their table is not in memory.
    pub(super) fn exported(elf: &Elf, file: &dyn Bytes) -> Option<Self> {
        let memory = &Loaded { elf, file };
        let section = elf.dynamic.clone()?;
        let len = usize::try_from(section.end - section.start).ok()?;
        let entries = memory.bytes(section.start, len.min(MAX_ENTRIES * 16))?;
        let entry = |wanted: u64| {
            let (entries, _) = entries.as_chunks::<16>();
            let mut entries = entries.iter().map(|entry| {
                let (tag, value) = entry.split_at(8);
                let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
                (word(tag), word(value))
            });
            entries.find_map(|(tag, value)| (tag == wanted).then_some(value))
        };
        let symbols = entry(SYMBOLS)?;
        let count = match (entry(GNU_HASH), entry(HASH)) {
            (Some(hash), _) => gnu_count(memory, hash)?,
            (None, Some(hash)) => word(memory, hash.wrapping_add(4))?,
            (None, None) => return None,
        };
        let end = symbols.checked_add(count.checked_mul(SYMBOL_BYTES as u64)?)?;
        let names = entry(NAMES)?;
        let names_end = names.checked_add(entry(NAMES_SIZE)?)?;
        let symbols = table(memory, &(symbols..end))?;
        Some(Self::sorted(&symbols, table(memory, &(names..names_end))?))
    }

    fn sorted(symbols: &[u8], names: Vec<u8>) -> Self {
        let symbols = symbols.chunks_exact(SYMBOL_BYTES);
        let mut functions: Vec<Function> = symbols
            .filter_map(|symbol| {
                let name = u32::from_le_bytes(symbol.get(..4)?.try_into().ok()?);
                let kind = symbol.get(4)? & 0xf;
                let section = u16::from_le_bytes(symbol.get(6..8)?.try_into().ok()?);
                let is_function = matches!(kind, FUNCTION | INDIRECT_FUNCTION) && section != 0;
                is_function.then_some(Function {
                    address: u64::from_le_bytes(symbol.get(8..16)?.try_into().ok()?),
                    size: u64::from_le_bytes(symbol.get(16..24)?.try_into().ok()?),
                    name,
                    is_indirect: kind == INDIRECT_FUNCTION,
                })
            })
            .collect();
        // Of several names of one function, the first has the size, if any has.
        functions.sort_by_key(|function| (function.address, Reverse(function.size)));
        Self { functions, names }
    }

    /// The bytes in memory.
    pub(super) fn size(&self) -> usize {
        self.names.len() + size_of_val(self.functions.as_slice())
    }

    /// The function called `name`. A version of a dynamic symbol is not part of its name.
    pub(super) fn find(&self, name: &str) -> Found {
        let is_called = |function: &&Function| {
            let start = usize::try_from(function.name).ok();
            let text = start.and_then(|start| self.names.get(start..));
            let rest = text.and_then(|text| text.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        };
        let mut found = self.functions.iter().filter(is_called);
        let Some(first) = found.next() else {
            return Found::None;
        };
        if found.any(|other| other.address != first.address) {
            return Found::Several;
        }
        match first.is_indirect {
            true => Found::Indirect,
            false => Found::At {
                address: first.address,
                size: first.size,
            },
        }
    }

    /// The functions with a name of the pattern, by address. Functions that a program chooses when it starts are left out.
    pub(super) fn matching(&self, pattern: &str) -> Vec<NamedFunction> {
        let named = self.functions.iter().filter_map(|function| {
            let name = self.name_of(function)?;
            let is_wanted = !function.is_indirect && glob_matches(pattern, &name);
            is_wanted.then(|| NamedFunction {
                address: function.address,
                size: function.size,
                name: name.into_owned(),
            })
        });
        let mut found: Vec<NamedFunction> = named.collect();
        found.dedup_by_key(|function| function.address);
        found
    }

    /// The name of a function of the table.
    fn name_of(&self, function: &Function) -> Option<Cow<'_, str>> {
        let name = self.names.get(usize::try_from(function.name).ok()?..)?;
        let mut bytes = name.iter().take(MAX_NAME_BYTES);
        let len = bytes.position(|byte| *byte == 0).filter(|len| *len > 0)?;
        Some(String::from_utf8_lossy(&name[..len]))
    }

    /// The function with the byte at `address`.
    fn holding(&self, address: u64) -> Option<&Function> {
        let after = self
            .functions
            .partition_point(|function| function.address <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        let is_within = address - function.address < function.size || function.size == 0;
        is_within.then_some(function)
    }

    /// The function with `selector`, and the offset of `address` in it, as `name+0xoffset/0xsize`. A function without a size extends to the
    /// next.
    pub(super) fn name(&self, selector: u64, address: u64) -> Option<String> {
        // The code to which a signal's handler returns has no call before it.
        let function = self.holding(selector).or_else(|| self.holding(address))?;
        let offset = address.wrapping_sub(function.address);
        let name = self.name_of(function)?;
        Some(format!("{name}+{offset:#x}/{:#x}", function.size))
    }
}

/// The bytes of a file, by the addresses of the file.
struct Loaded<'f> {
    elf: &'f Elf,
    file: &'f dyn Bytes,
}

impl Bytes for Loaded<'_> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        self.file.read(self.elf.offset_of(at)?, buf)
    }
}

/// The bytes of a table, if it is not larger than any real one.
pub(super) fn table(source: &dyn Bytes, range: &Range<u64>) -> Option<Vec<u8>> {
    let len = range.end - range.start;
    let len = (len <= MAX_TABLE_BYTES).then_some(len)?;
    source.bytes(range.start, usize::try_from(len).ok()?)
}

fn word(memory: &dyn Bytes, at: u64) -> Option<u64> {
    let mut bytes = [0; 4];
    memory.read(at, &mut bytes)?;
    Some(u32::from_le_bytes(bytes).into())
}

/// The number of symbols by the hash table at `at` (`.gnu.hash`): behind the last symbol of the last chain.
fn gnu_count(memory: &dyn Bytes, at: u64) -> Option<u64> {
    let field = |number: u64| word(memory, at.wrapping_add(number * 4));
    let (buckets, first, filter) = (field(0)?, field(1)?, field(2)?);
    if buckets > MAX_HASH_WORDS || filter > MAX_HASH_WORDS {
        return None;
    }
    let heads = at.wrapping_add(16 + filter * 8);
    let table = memory.bytes(heads, usize::try_from(buckets * 4).ok()?)?;
    let (table, _) = table.as_chunks::<4>();
    let last = table.iter().map(|head| u32::from_le_bytes(*head)).max()?;
    let mut last = u64::from(last);
    if last < first {
        return Some(first);
    }
    let chains = heads.wrapping_add(buckets * 4);
    for _ in 0..MAX_HASH_WORDS {
        let hash = word(memory, chains.wrapping_add((last - first) * 4))?;
        last += 1;
        if hash & 1 != 0 {
            return Some(last);
        }
    }
    None
}
