//! The ELF symbol table of a kernel.

use address::Gva;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind, SymbolSection,
    elf,
    read::elf::{ElfFile64, ElfSymbol64},
};

use crate::{SymbolTable, SymbolTableBuilder};

/// Linked at 0 up to 6.14: the section's symbols are offsets, which the kernel calls absolute too.
const PER_CPU_SECTION: &[u8] = b".data..percpu";

/// The symbols of `.symtab` in the ELF file `bytes`; `None` if no symbol names code.
pub(super) fn parse(bytes: &[u8]) -> Option<SymbolTable> {
    let file = ElfFile64::<LittleEndian>::parse(bytes).ok()?;
    let mut builder = SymbolTableBuilder::new();
    let mut any_text = false;
    for symbol in file.symbols() {
        let listed = !matches!(symbol.kind(), SymbolKind::File | SymbolKind::Section);
        if let (true, Some(kind), Ok(name)) = (listed, letter(&file, &symbol), symbol.name())
            && !is_assembler_label(name)
        {
            builder.push(Gva(symbol.address()), kind, name);
            any_text |= kind.eq_ignore_ascii_case(&'t');
        }
    }
    any_text.then(|| builder.build())
}

/// Labels within functions, which the kernel leaves out of kallsyms too.
fn is_assembler_label(name: &str) -> bool {
    name.starts_with(".L") || name.starts_with('$')
}

/// The letter printed by nm(1), or `None` for a symbol defined elsewhere.
fn letter(
    file: &ElfFile64<'_, LittleEndian>,
    symbol: &ElfSymbol64<'_, '_, LittleEndian>,
) -> Option<char> {
    let letter = match symbol.section() {
        SymbolSection::Absolute => 'a',
        SymbolSection::Section(index) => {
            let section = file.section_by_index(index).ok()?;
            let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
                return None;
            };
            let has = |flag: elf::SectionFlags| sh_flags & flag == flag;
            let held = section.file_range().is_some();
            if !has(elf::SHF_ALLOC) {
                return None;
            }
            let per_cpu = section.name_bytes() == Ok(PER_CPU_SECTION) && section.address() == 0;
            match (has(elf::SHF_EXECINSTR), has(elf::SHF_WRITE)) {
                _ if per_cpu => 'a',
                (true, _) if symbol.is_weak() => 'w',
                (true, _) => 't',
                (false, true) if held => 'd',
                (false, true) => 'b',
                (false, false) => 'r',
            }
        }
        _ => return None,
    };
    Some(if symbol.is_local() {
        letter
    } else {
        letter.to_ascii_uppercase()
    })
}
