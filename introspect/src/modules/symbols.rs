//! A module's symbols.
//!
//! While a module is coming, the module's `kallsyms` points to all symbols, in memory freed with
//! the init parts; afterwards to the symbols with the module's lifetime. Either way `kallsyms`
//! holds an ELF symbol table with run-time addresses as values, the names, and nm's letter for each
//! symbol.

use std::sync::Arc;

use address::Gva;

use super::{Module, ModulesError, layout::ModuleLayout, view::View};
use crate::Symbol;

const SYMBOL_BYTES: usize = 24;
/// The largest module, a graphics driver, has 60 000.
const MAX_SYMBOLS: u64 = 1 << 18;
/// The largest module has 3 MB of names.
const MAX_NAMES_BYTES: usize = 16 << 20;
/// The kernel's own limit, KSYM_NAME_LEN, is 512.
const MAX_NAME_BYTES: usize = 512;
/// `st_shndx` of a symbol defined elsewhere.
const UNDEFINED: u16 = 0;
const GLOBAL: u8 = 1;
const WEAK: u8 = 2;

/// The three tables, read.
#[derive(Debug)]
pub(super) struct Symtab {
    entries: Vec<u8>,
    names: Vec<u8>,
    letters: Vec<u8>,
}

/// An `Elf64_Sym`.
#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    binding: u8,
    section: u16,
    value: u64,
    size: u64,
}

impl Entry {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let info = *bytes.get(4)?;
        let section = bytes.get(6..8)?.try_into().ok()?;
        let wide = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            name: u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?),
            binding: info >> 4,
            section: u16::from_le_bytes(section),
            value: wide(8)?,
            size: wide(16)?,
        })
    }
}

impl Symtab {
    /// Follows `kallsyms` from the bytes of a `struct module`.
    pub(super) fn read(
        view: &View<'_>,
        layout: &ModuleLayout,
        module: &[u8],
    ) -> Result<Self, ModulesError> {
        let table = &layout.symtab;
        let pointer = Gva(layout.kallsyms.read(module).unwrap_or_default());
        let head = view.bytes("a module's symbols", pointer, table.size)?;
        let field = |slot: crate::btf::Slot| slot.read(&head).unwrap_or_default();
        let count = field(table.count);
        let len = usize::try_from(count).ok().filter(|_| count <= MAX_SYMBOLS);
        let len = len.ok_or(ModulesError::TooMany {
            what: "symbols of a module",
            count,
        })?;
        let entries = view.bytes(
            "a module's symbol table",
            Gva(field(table.symbols)),
            len * SYMBOL_BYTES,
        )?;
        let letters = view.bytes("a module's symbol types", Gva(field(table.letters)), len)?;
        let last = each(&entries).map(|entry| entry.name as usize).max();
        // The length of the names is not stored: read, from the start of the last name, as many
        // bytes as a name may take.
        let names_len = last
            .unwrap_or(0)
            .saturating_add(MAX_NAME_BYTES)
            .min(MAX_NAMES_BYTES);
        let names = view.bytes_up_to(
            "a module's symbol names",
            Gva(field(table.names)),
            names_len,
        )?;
        Ok(Self {
            entries,
            names,
            letters,
        })
    }

    /// The symbols in `module`, in address order. Many symbols may share one long name, so each
    /// symbol's name counts against the limit of `view`.
    pub(super) fn symbols(
        &self,
        view: &View<'_>,
        module: &Module,
    ) -> Result<Vec<Symbol>, ModulesError> {
        let owner: Arc<str> = module.name.as_str().into();
        let mut symbols = Vec::new();
        for (entry, &letter) in each(&self.entries).zip(&self.letters) {
            let Some((kind, name)) = self.listed(entry, letter, module) else {
                continue;
            };
            view.spend(name.len())?;
            symbols.push(Symbol {
                address: Gva(entry.value),
                size: entry.size,
                kind,
                name: name.to_owned(),
                module: Some(Arc::clone(&owner)),
            });
        }
        symbols.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        set_sizes(&mut symbols, module);
        Ok(symbols)
    }

    /// The letter and the name of a symbol; `None` if the symbol is defined elsewhere, lies outside
    /// the module's parts or has no name.
    fn listed(&self, entry: Entry, letter: u8, module: &Module) -> Option<(char, &str)> {
        let region = module.region_at(Gva(entry.value))?;
        let kind = kind(letter, entry.binding, region.kind.is_text())?;
        let name = self.name(entry.name)?;
        (entry.section != UNDEFINED).then_some((kind, name))
    }

    /// The name at an offset; `None` for names omitted by the kernel too.
    fn name(&self, offset: u32) -> Option<&str> {
        let rest = self.names.get(offset as usize..)?;
        let window = &rest[..rest.len().min(MAX_NAME_BYTES)];
        let len = window.iter().position(|&byte| byte == 0)?;
        let name = std::str::from_utf8(&window[..len]).ok()?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        let is_label = name.starts_with(".L") || name.starts_with('$');
        (is_name && !is_label).then_some(name)
    }
}

fn each(entries: &[u8]) -> impl Iterator<Item = Entry> {
    entries.chunks_exact(SYMBOL_BYTES).filter_map(Entry::parse)
}

/// nm's letter for the small letter noted by the kernel. Only symbols in code are text: some data
/// sections are executable by their flags.
fn kind(letter: u8, binding: u8, in_text: bool) -> Option<char> {
    let letter = match letter.to_ascii_lowercase() {
        b'u' => return None,
        b't' if in_text && binding == WEAK => 'w',
        b't' if !in_text => 'd',
        letter if letter.is_ascii_lowercase() => char::from(letter),
        // The kernel's mark for a section without a letter.
        _ if in_text => 't',
        _ => 'd',
    };
    Some(if binding == GLOBAL {
        letter.to_ascii_uppercase()
    } else {
        letter
    })
}

/// Sets each size to the distance to the next symbol at a higher address. The last symbol of a part
/// keeps the compiler's size, because padding fills the part up to a page.
fn set_sizes(symbols: &mut [Symbol], module: &Module) {
    let mut next: Option<Gva> = None;
    for index in (0..symbols.len()).rev() {
        let address = symbols[index].address;
        let later = symbols.get(index + 1).map(|symbol| symbol.address);
        if later.is_some_and(|later| later > address) {
            next = later;
        }
        let Some(region) = module.region_at(address) else {
            continue;
        };
        let left = region.range.end.offset_from(address).unwrap_or(0);
        let distance = next.and_then(|next| next.offset_from(address));
        symbols[index].size = match (distance, symbols[index].size) {
            (Some(distance), _) if distance < left => distance,
            (_, 0) => left,
            (_, own) => own.min(left),
        };
    }
}
