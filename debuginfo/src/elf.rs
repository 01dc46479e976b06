//! The ELF file: its sections with debug information, its build-id and its symbols.

use std::ops::Range;
use std::path::Path;

use address::Gva;
use files::ReadError;
use gimli::{DwarfSections, SectionId};
use introspect::{BuildId, SymbolTable, SymbolTableBuilder};
use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::read::{ReadCache, ReadRef};
use object::{
    LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, SectionFlags, SymbolKind,
    SymbolSection, elf,
};

use crate::budget::Budget;
use crate::error::{LookupError, OpenError};
use crate::relocation::SectionAddresses;
use crate::section::read_section;
use crate::stored::Stored;

/// The maximum of all read sections together, decompressed, with the symbols.
const MAX_SECTIONS_BYTES: u64 = 4 << 30;
/// The most sections or segments. A linked kernel has fewer than 100.
pub(crate) const MAX_HEADERS: u32 = 1 << 16;

/// The sections that look-ups read.
const NEEDED: [SectionId; 11] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
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

/// What a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// A kernel, which is linked.
    Kernel,
    /// A module, which the kernel links when it loads the module.
    Module,
}

/// The parts of the file that stay in memory.
#[derive(Debug)]
pub(crate) struct ElfParts {
    pub(crate) sections: DwarfSections<Vec<u8>>,
    /// `.debug_frame`, which says where a function's frame is; empty in many files.
    pub(crate) frames: Vec<u8>,
    /// The size of all sections.
    pub(crate) bytes: u64,
    pub(crate) build_id: Option<BuildId>,
    pub(crate) symbols: SymbolTable,
    /// The sections of a module with code that a processor executes where it is; empty for a kernel.
    pub(crate) executed: Vec<Range<u64>>,
}

impl ElfParts {
    /// Reads the file at `path`. Other sections are not read: the relocations of a kernel have more bytes than the rest.
    pub(crate) fn read(path: &Path, kind: FileKind) -> Result<Self, OpenError> {
        let stored = Stored::open(path)?;
        match &stored {
            Stored::File(file) => {
                let file = file.try_clone().map_err(ReadError::from)?;
                Self::of_data(&ReadCache::new(file), &stored, kind)
            }
            Stored::Memory(bytes) => Self::of_data(bytes.as_slice(), &stored, kind),
        }
    }

    fn of_data<'data, R: ReadRef<'data>>(
        data: R,
        contents: &Stored,
        kind: FileKind,
    ) -> Result<Self, OpenError> {
        let table_bytes = table_bytes(data, kind)?;
        let elf = ElfFile64::<LittleEndian, _>::parse(data).map_err(OpenError::Elf)?;
        Self::of_elf(&elf, contents, table_bytes, kind)
    }

    fn of_elf<'data, R: ReadRef<'data>>(
        elf: &ElfFile64<'data, LittleEndian, R>,
        contents: &Stored,
        table_bytes: u64,
        kind: FileKind,
    ) -> Result<Self, OpenError> {
        let header = elf.elf_header();
        let machine = header.e_machine(LittleEndian).0;
        if machine != elf::EM_X86_64.0 {
            return Err(OpenError::Machine { machine });
        }
        let addresses = match (kind, header.e_type(LittleEndian) == elf::ET_REL) {
            (FileKind::Kernel, false) => None,
            (FileKind::Module, true) => Some(SectionAddresses::of_module(elf)?),
            (FileKind::Kernel, true) => return Err(OpenError::Relocatable),
            (FileKind::Module, false) => return Err(OpenError::NotAModule),
        };
        if elf.section_by_name(".zdebug_info").is_some() {
            return Err(OpenError::OldCompression);
        }
        for id in REQUIRED {
            if elf.section_by_name(id.name()).is_none() {
                return Err(OpenError::NoDebugInfo { section: id.name() });
            }
        }
        let mut bytes = table_bytes;
        let mut read = |id: SectionId| {
            let found = match elf.section_by_name(id.name()) {
                Some(section) => {
                    let max = MAX_SECTIONS_BYTES - bytes;
                    let mut found =
                        read_section(&section, id.name(), contents, max, MAX_SECTIONS_BYTES)?;
                    if let Some(addresses) = &addresses {
                        addresses.relocate(elf, &section, id.name(), &mut found)?;
                    }
                    found
                }
                None => Vec::new(),
            };
            bytes += found.len() as u64;
            Ok::<_, OpenError>(found)
        };
        let sections = DwarfSections::load(|id| match NEEDED.contains(&id) {
            true => read(id),
            false => Ok(Vec::new()),
        })?;
        let frames = read(SectionId::DebugFrame)?;
        let build_id = elf.build_id().map_err(OpenError::Elf)?;
        Ok(Self {
            sections,
            frames,
            bytes: bytes - table_bytes,
            build_id: build_id.and_then(BuildId::new),
            symbols: code_symbols(elf, addresses.as_ref(), &mut Budget::of_bytes(table_bytes))?,
            executed: addresses.map_or_else(Vec::new, SectionAddresses::into_executed),
        })
    }
}

/// The size of the symbol tables with their names, of the notes, and of a module's relocations: `object` reads a table at once. The file may be
/// sparse.
fn table_bytes<'data, R: ReadRef<'data>>(data: R, kind: FileKind) -> Result<u64, OpenError> {
    let header = FileHeader64::<LittleEndian>::parse(data).map_err(OpenError::Elf)?;
    let endian = header.endian().map_err(OpenError::Elf)?;
    let sections = header.shnum(endian, data).map_err(OpenError::Elf)?;
    let segments = header.phnum(endian, data).map_err(OpenError::Elf)?;
    let too_large = OpenError::TooLarge {
        max: MAX_SECTIONS_BYTES,
    };
    if sections.max(segments) > MAX_HEADERS {
        return Err(too_large);
    }
    let sections = header.sections(endian, data).map_err(OpenError::Elf)?;
    let segments = header.program_headers(endian, data);
    let segments = segments.map_err(OpenError::Elf)?.iter();
    let notes = segments.filter(|segment| segment.p_type(endian) == elf::PT_NOTE);
    let mut bytes: u64 = notes.fold(0, |bytes, note| bytes.saturating_add(note.p_filesz(endian)));
    for section in sections.iter() {
        let has_names = matches!(
            section.sh_type(endian),
            elf::SHT_SYMTAB | elf::SHT_DYNSYM | elf::SHT_SYMTAB_SHNDX
        );
        let is_relocations = matches!(
            section.sh_type(endian),
            elf::SHT_RELA | elf::SHT_REL | elf::SHT_CREL
        );
        let is_read = is_relocations && kind == FileKind::Module;
        if has_names || is_read || section.sh_type(endian) == elf::SHT_NOTE {
            bytes = bytes.saturating_add(section.sh_size(endian));
        }
        if has_names && let Ok(names) = sections.section(section.link(endian)) {
            bytes = bytes.saturating_add(names.sh_size(endian));
        }
    }
    match bytes > MAX_SECTIONS_BYTES {
        true => Err(too_large),
        false => Ok(bytes),
    }
}

/// The symbols of code in `.symtab`; empty if the file has no symbol table.
fn code_symbols<'data, R: ReadRef<'data>>(
    elf: &ElfFile64<'data, LittleEndian, R>,
    addresses: Option<&SectionAddresses>,
    budget: &mut Budget,
) -> Result<SymbolTable, LookupError> {
    let mut builder = SymbolTableBuilder::new();
    for symbol in elf.symbols() {
        let SymbolSection::Section(index) = symbol.section() else {
            continue;
        };
        let is_code = || {
            let flags = elf.section_by_index(index).map(|section| section.flags());
            matches!(flags, Ok(SectionFlags::Elf { sh_flags, .. }) if sh_flags & elf::SHF_EXECINSTR == elf::SHF_EXECINSTR)
        };
        let Ok(name) = symbol.name() else {
            continue;
        };
        // Names may overlap.
        budget.spend_string(name.len())?;
        let is_listed = !matches!(symbol.kind(), SymbolKind::File | SymbolKind::Section);
        // Labels within functions, which the kernel leaves out of its own table.
        let is_label = name.starts_with(".L") || name.starts_with('$');
        if is_listed && !is_label && is_code() {
            let kind = if symbol.is_local() { 't' } else { 'T' };
            let section = addresses.map_or(0, |addresses| addresses.section(index));
            builder.push(Gva(section.wrapping_add(symbol.address())), kind, name);
        }
    }
    Ok(builder.build())
}
