//! The ELF file: its sections with debug information, its build-id and its symbols.

use std::fs::File;
use std::path::Path;

use address::Gva;
use gimli::{DwarfSections, SectionId};
use introspect::{BuildId, SymbolTable, SymbolTableBuilder};
use object::read::elf::{ElfFile64, FileHeader as _};
use object::read::{ReadCache, ReadRef};
use object::{
    LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, SectionFlags, SymbolKind,
    SymbolSection, elf,
};

use crate::error::OpenError;
use crate::section::read_section;

/// A kernel with debug information has less than 1 GiB, and with everything built in, a few.
const MAX_FILE_BYTES: u64 = 16 << 30;
/// The maximum of all read sections together, decompressed.
const MAX_SECTIONS_BYTES: u64 = 4 << 30;

/// The sections that look-ups read.
const NEEDED: [SectionId; 9] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
];
/// The sections without which there are no lines.
const REQUIRED: [SectionId; 3] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugLine,
];

/// The parts of the file that stay in memory.
#[derive(Debug)]
pub(crate) struct ElfParts {
    pub(crate) sections: DwarfSections<Vec<u8>>,
    /// The size of all sections.
    pub(crate) bytes: u64,
    pub(crate) build_id: Option<BuildId>,
    pub(crate) symbols: SymbolTable,
}

impl ElfParts {
    /// Reads the file at `path`. Other sections are not read: the relocations of a kernel have more bytes than the rest.
    pub(crate) fn read(path: &Path) -> Result<Self, OpenError> {
        let (file, _) = files::open_regular(path, MAX_FILE_BYTES)?;
        let contents = file.try_clone().map_err(files::ReadError::from)?;
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<LittleEndian, _>::parse(&cache).map_err(OpenError::Elf)?;
        Self::of_elf(&elf, &contents)
    }

    fn of_elf<'data, R: ReadRef<'data>>(
        elf: &ElfFile64<'data, LittleEndian, R>,
        contents: &File,
    ) -> Result<Self, OpenError> {
        let header = elf.elf_header();
        let machine = header.e_machine(LittleEndian).0;
        if machine != elf::EM_X86_64.0 {
            return Err(OpenError::Machine { machine });
        }
        if header.e_type(LittleEndian) == elf::ET_REL {
            return Err(OpenError::Relocatable);
        }
        for id in REQUIRED {
            if elf.section_by_name(id.name()).is_none() {
                return Err(OpenError::NoDebugInfo { section: id.name() });
            }
        }
        let mut bytes = 0;
        let sections = DwarfSections::load(|id| {
            let found = match elf.section_by_name(id.name()) {
                Some(section) if NEEDED.contains(&id) => {
                    let max = MAX_SECTIONS_BYTES - bytes;
                    read_section(&section, id.name(), contents, max, MAX_SECTIONS_BYTES)?
                }
                _ => Vec::new(),
            };
            bytes += found.len() as u64;
            Ok::<_, OpenError>(found)
        })?;
        let build_id = elf.build_id().map_err(OpenError::Elf)?;
        Ok(Self {
            sections,
            bytes,
            build_id: build_id.and_then(BuildId::new),
            symbols: code_symbols(elf),
        })
    }
}

/// The symbols of code in `.symtab`; empty if the file has no symbol table.
fn code_symbols<'data, R: ReadRef<'data>>(elf: &ElfFile64<'data, LittleEndian, R>) -> SymbolTable {
    let mut builder = SymbolTableBuilder::new();
    for symbol in elf.symbols() {
        let SymbolSection::Section(index) = symbol.section() else {
            continue;
        };
        let is_code = || {
            let flags = elf.section_by_index(index).map(|section| section.flags());
            matches!(flags, Ok(SectionFlags::Elf { sh_flags, .. }) if sh_flags & elf::SHF_EXECINSTR == elf::SHF_EXECINSTR)
        };
        let is_listed = !matches!(symbol.kind(), SymbolKind::File | SymbolKind::Section);
        // Labels within functions, which the kernel leaves out of its own table.
        let is_label = |name: &str| name.starts_with(".L") || name.starts_with('$');
        if let (true, Ok(name)) = (is_listed, symbol.name())
            && !is_label(name)
            && is_code()
        {
            let kind = if symbol.is_local() { 't' } else { 'T' };
            builder.push(Gva(symbol.address()), kind, name);
        }
    }
    builder.build()
}
