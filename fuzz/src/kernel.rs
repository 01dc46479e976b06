//! A synthetic kernel file with all the data that hyprobe reads from a kernel: banner, symbols, types, patch sites.

use address::Gva;
use introspect::SymbolTable;
use introspect::kallsyms::synthetic::{Entry, Layout, kernel as kallsyms};
use introspect::modules::synthetic::{Form, types};
use introspect::patchsites::synthetic::{Kernel, TEXT, TEXT_BYTES};
use vmm::boot::synthetic::{Segment, elf};

const TEXT_GPA: u64 = 0x10_0000;
/// The distance from the code to the kallsyms tables.
const KALLSYMS: u64 = 0x10_0000;
/// The distance from the code to the types.
const TYPES: u64 = 0x20_0000;
/// The distance from the code to the segment of per-CPU data.
const PER_CPU: u64 = 0x30_0000;
const BANNER: &[u8] = b"Linux version 6.1.0-fuzz (somebody@example) #1 SMP\n\0";
/// The offset of the banner in the code, behind the functions.
const BANNER_OFFSET: usize = 0x800;
/// The kallsyms tables need two markers, of 256 names each.
const FUNCTIONS: u64 = 500;

/// Form of the symbols and types in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Tables in the kernel's data, and no sections.
    Kallsyms,
    /// Sections: `.symtab` and `.BTF`.
    Sections,
}

/// The file of a kernel.
pub fn kernel_file(symbols: Symbols) -> Vec<u8> {
    let mut kernel = Kernel::sample();
    kernel.code(BANNER_OFFSET, BANNER);
    let types = types(Form::Memory).finish();
    let start = TEXT + TYPES;
    kernel.symbols.push(Gva(start), 'R', "__start_BTF");
    let stop = start + types.len() as u64;
    kernel.symbols.push(Gva(stop), 'R', "__stop_BTF");
    for number in 0..FUNCTIONS {
        let at = TEXT + number * (TEXT_BYTES as u64 / FUNCTIONS);
        kernel.symbols.push(Gva(at), 't', &format!("vfs_{number}"));
    }
    let Kernel {
        bytes,
        symbols: builder,
    } = kernel;
    let table = entries(&builder.build());
    let tables = match symbols {
        Symbols::Kallsyms => {
            let base = Gva(TEXT + KALLSYMS);
            kallsyms(Layout::OffsetsFirst, base, TEXT, &table)
        }
        Symbols::Sections => vec![0; 64],
    };
    let at = |distance: u64, bytes| Segment {
        paddr: TEXT_GPA + distance,
        vaddr: TEXT + distance,
        bytes,
        memsz: 0x1_0000,
    };
    let per_cpu = Segment {
        vaddr: 0x1000,
        ..at(PER_CPU, b"data".as_slice())
    };
    let segments = [
        at(0, &bytes),
        at(KALLSYMS, &tables),
        at(TYPES, &types),
        per_cpu,
    ];
    let file = elf(TEXT_GPA, &segments);
    match symbols {
        Symbols::Kallsyms => file,
        Symbols::Sections => with_sections(file, &table, &types),
    }
}

/// The symbols by address, as the kernel's build sorts them.
fn entries(table: &SymbolTable) -> Vec<Entry> {
    let symbols = table.iter();
    symbols
        .map(|symbol| (symbol.address.0, symbol.kind, symbol.name))
        .collect()
}

/// A section: name, type, flags, address, link to another section, and size of an entry.
type Section = (&'static str, u32, u64, u64, u32, u64);

const SECTIONS: [Section; 6] = [
    (".text", 1, 6, TEXT, 0, 0),
    (".data", 1, 3, TEXT + PER_CPU, 0, 0),
    (".symtab", 2, 0, 0, 4, SYMBOL_BYTES),
    (".strtab", 3, 0, 0, 0, 0),
    (".BTF", 1, 2, TEXT + TYPES, 0, 0),
    (".shstrtab", 3, 0, 0, 0, 0),
];
const SYMBOL_BYTES: u64 = 24;
const TEXT_SECTION: u16 = 1;
const DATA_SECTION: u16 = 2;
const NAMES_SECTION: u16 = 6;

/// The offsets of the header's fields: the offset of the sections, their number, and the index of their names.
const SECTIONS_FIELD: usize = 40;
const SECTION_COUNT_FIELD: usize = 60;
const SECTION_NAMES_FIELD: usize = 62;

/// Appends sections to an ELF file without sections.
fn with_sections(mut file: Vec<u8>, symbols: &[Entry], types: &[u8]) -> Vec<u8> {
    let (symtab, strtab) = symbol_sections(symbols);
    let mut names = vec![0];
    let name_offsets = SECTIONS.map(|(name, ..)| string(&mut names, name));
    let contents: [&[u8]; 6] = [
        &[0x90; TEXT_BYTES],
        &[0; 8],
        &symtab,
        &strtab,
        types,
        &names,
    ];
    let mut headers = vec![0; 64];
    for ((section, contents), name) in SECTIONS.iter().zip(contents).zip(name_offsets) {
        let (_, kind, flags, address, link, entry_bytes) = *section;
        let (offset, len) = (file.len() as u64, contents.len() as u64);
        file.extend(contents);
        headers.extend([name, kind].into_iter().flat_map(u32::to_le_bytes));
        let fields = [flags, address, offset, len];
        headers.extend(fields.into_iter().flat_map(u64::to_le_bytes));
        // Behind the link: the index of the first global symbol.
        headers.extend([link, 1].into_iter().flat_map(u32::to_le_bytes));
        headers.extend([1, entry_bytes].into_iter().flat_map(u64::to_le_bytes));
    }
    let offset = file.len() as u64;
    file.extend(headers);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(SECTIONS_FIELD, &offset.to_le_bytes());
    put(SECTION_COUNT_FIELD, &(NAMES_SECTION + 1).to_le_bytes());
    put(SECTION_NAMES_FIELD, &NAMES_SECTION.to_le_bytes());
    file
}

/// The contents of `.symtab` and `.strtab`.
fn symbol_sections(symbols: &[Entry]) -> (Vec<u8>, Vec<u8>) {
    let (mut symtab, mut strtab) = (vec![0; 24], vec![0]);
    for (address, kind, name) in symbols {
        let section = match kind.eq_ignore_ascii_case(&'t') {
            true => TEXT_SECTION,
            false => DATA_SECTION,
        };
        symtab.extend(string(&mut strtab, name).to_le_bytes());
        let binding = u8::from(kind.is_ascii_uppercase());
        symtab.extend([binding << 4, 0]);
        symtab.extend(section.to_le_bytes());
        symtab.extend(address.to_le_bytes());
        symtab.extend([0; 8]);
    }
    (symtab, strtab)
}

/// Appends a string. Returns the string's offset.
fn string(strings: &mut Vec<u8>, text: &str) -> u32 {
    let offset = u32::try_from(strings.len()).expect("few strings");
    strings.extend(text.bytes());
    strings.push(0);
    offset
}
