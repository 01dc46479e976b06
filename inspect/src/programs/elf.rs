//! The headers of a program's file.
//!
//! The file is in the guest's memory, some pages of it, and may hold anything.

use std::ops::Range;

/// `e_phentsize` of 64-bit files, and `e_shentsize`.
const SEGMENT_BYTES: usize = 56;
const SECTION_BYTES: usize = 64;
const HEADER_BYTES: usize = 64;
/// Programs have some ten segments and forty sections.
const MAX_SEGMENTS: usize = 64;
const MAX_SECTIONS: usize = 256;
/// The magic number, 64-bit, little-endian.
const MAGIC: [u8; 6] = *b"\x7fELF\x02\x01";
/// `PT_LOAD`, `PT_DYNAMIC`, `PT_GNU_EH_FRAME`.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const UNWIND: u32 = 0x6474_e550;
/// `PF_X`.
const EXECUTABLE: u32 = 1;
/// The most bytes of the sections' names.
const MAX_NAME_BYTES: u64 = 64 << 10;
/// `SHT_SYMTAB`.
const SYMBOLS: u32 = 2;

/// Bytes at addresses or offsets, some of which are missing.
pub(super) trait Bytes {
    /// Fills `buf` from `at` on; `None` if a byte of the range is missing.
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()>;

    /// The `len` bytes at `at`; the caller has bounded `len`.
    fn bytes(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes)?;
        Some(bytes)
    }
}

/// A segment that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    offset: u64,
    address: u64,
    /// The number of bytes from the file.
    held: u64,
    is_executable: bool,
}

/// A segment of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// The offsets in the file.
    pub(super) offsets: Range<u64>,
    /// The distance from an offset to its address.
    moved: u64,
}

impl Code {
    /// The offset in the file that the byte at `address` would have if the whole file were loaded as the code is.
    pub(super) const fn offset_of(&self, address: u64) -> u64 {
        address.wrapping_sub(self.moved)
    }
}

/// The parts of a file that stacks and names need. Addresses are those of the file, without the distance to where it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elf {
    loads: Vec<Load>,
    /// The sorted table of unwind rules (`.eh_frame_hdr`).
    pub(super) unwind: Option<u64>,
    /// The dynamic section.
    pub(super) dynamic: Option<Range<u64>>,
    /// The offset and number of section headers, and the number of the section with their names.
    sections: (u64, usize, usize),
}

/// A section of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// The offsets in the file.
    pub(super) bytes: Range<u64>,
    pub(super) address: u64,
}

/// The offsets of a table of symbols and of its names in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SymbolSections {
    pub(super) symbols: Range<u64>,
    pub(super) names: Range<u64>,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_le_bytes(bytes).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Load {
    fn offset_of(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address)?;
        (within < self.held).then(|| within.wrapping_add(self.offset))
    }
}

impl Elf {
    /// Reads the headers of `file`; `None` if it is no 64-bit file, or its headers are not in memory.
    pub(super) fn read(file: &dyn Bytes) -> Option<Self> {
        let header = file.bytes(0, HEADER_BYTES)?;
        if !header.starts_with(&MAGIC) || u16_at(&header, 54)? != SEGMENT_BYTES {
            return None;
        }
        let count = u16_at(&header, 56)?.min(MAX_SEGMENTS);
        let table = file.bytes(u64_at(&header, 32)?, count * SEGMENT_BYTES)?;
        let sections = match u16_at(&header, 58)? {
            SECTION_BYTES => u16_at(&header, 60)?,
            _ => 0,
        };
        let mut elf = Self {
            loads: Vec::new(),
            unwind: None,
            dynamic: None,
            sections: (u64_at(&header, 40)?, sections, u16_at(&header, 62)?),
        };
        for segment in table.chunks_exact(SEGMENT_BYTES) {
            let address = u64_at(segment, 16)?;
            match u32_at(segment, 0)? {
                LOAD => elf.loads.push(Load {
                    offset: u64_at(segment, 8)?,
                    address,
                    held: u64_at(segment, 32)?,
                    is_executable: u32_at(segment, 4)? & EXECUTABLE != 0,
                }),
                DYNAMIC => {
                    elf.dynamic = Some(address..address.checked_add(u64_at(segment, 32)?)?);
                }
                UNWIND => elf.unwind = Some(address),
                _ => {}
            }
        }
        Some(elf)
    }

    /// The address of the byte at `offset` of the file.
    pub(super) fn address_of(&self, offset: u64) -> Option<u64> {
        // The loader maps whole pages, so the bytes before a segment are mapped, too; those of the segment itself come first.
        let mut found = self.loads.iter().filter_map(|load| {
            let within = offset.checked_sub(load.offset)?;
            (within < load.held).then(|| within.wrapping_add(load.address))
        });
        found.next()
    }

    /// The offset in the file of the byte at `address`.
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.loads.iter().find_map(|load| load.offset_of(address))
    }

    /// The offset in the file of the instruction at `address`; `None` if no code is there.
    pub(super) fn code_offset_of(&self, address: u64) -> Option<u64> {
        let mut code = self.loads.iter().filter(|load| load.is_executable);
        code.find_map(|load| load.offset_of(address))
    }

    /// The segments of code.
    pub(super) fn code(&self) -> impl Iterator<Item = Code> {
        let code = self.loads.iter().filter(|load| load.is_executable);
        code.map(|load| Code {
            offsets: load.offset..load.offset.saturating_add(load.held),
            moved: load.address.wrapping_sub(load.offset),
        })
    }

    /// The symbol table that the file has besides the dynamic one, unless it was stripped.
    pub(super) fn symbol_sections(&self, file: &dyn Bytes) -> Option<SymbolSections> {
        let (at, count, _) = self.sections;
        let table = file.bytes(at, count.min(MAX_SECTIONS) * SECTION_BYTES)?;
        let section = |number: usize| table.chunks_exact(SECTION_BYTES).nth(number);
        let is_symbols = |header: &&[u8]| u32_at(header, 4) == Some(SYMBOLS);
        let symbols = table.chunks_exact(SECTION_BYTES).find(is_symbols)?;
        let names = section(usize::try_from(u32_at(symbols, 40)?).ok()?)?;
        Some(SymbolSections {
            symbols: range_of(symbols)?,
            names: range_of(names)?,
        })
    }

    /// The sections called `names`; `None` if a table that names the sections is not in memory, or is larger than any real one.
    pub(super) fn sections<const COUNT: usize>(
        &self,
        file: &dyn Bytes,
        names: [&str; COUNT],
    ) -> Option<[Option<Section>; COUNT]> {
        let (at, count, text) = self.sections;
        let table = (count <= MAX_SECTIONS).then(|| file.bytes(at, count * SECTION_BYTES))??;
        let (headers, _) = table.as_chunks::<SECTION_BYTES>();
        let text = range_of(headers.get(text)?)?;
        let len = text.end - text.start;
        let len = (len <= MAX_NAME_BYTES).then_some(len)?;
        let text = file.bytes(text.start, usize::try_from(len).ok()?)?;
        Some(names.map(|name| {
            let name = format!("{name}\0");
            let is_called = |header: &&[u8; SECTION_BYTES]| {
                let start = u32_at(&header[..], 0).and_then(|start| usize::try_from(start).ok());
                let found = start.and_then(|start| text.get(start..));
                found.is_some_and(|found| found.starts_with(name.as_bytes()))
            };
            let header = headers.iter().find(is_called)?;
            Some(Section {
                bytes: range_of(header)?,
                address: u64_at(header, 16)?,
            })
        }))
    }
}

/// The offsets in the file of a section with `header`.
fn range_of(header: &[u8]) -> Option<Range<u64>> {
    let start = u64_at(header, 24)?;
    Some(start..start.checked_add(u64_at(header, 32)?)?)
}
