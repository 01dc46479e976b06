//! The addresses in a module's file.
//!
//! A module is linked when the kernel loads it: in its file, each section begins at 0, and relocations say where addresses go. Here each
//! loaded section gets an address of its own, in the order of the file, and the debug sections are relocated to these. The addresses are
//! not those of the running module: a frame is found by its symbol and offset.

use std::ops::Range;

use object::read::elf::{ElfFile64, SectionHeader as _};
use object::read::{ReadRef, SectionIndex, SymbolIndex};
use object::{
    LittleEndian, Object as _, ObjectSection, ObjectSymbol as _, RelocationKind, RelocationTarget,
    SymbolSection, elf,
};

use crate::error::OpenError;

/// The address of the first section. 0 is the address of discarded code.
const FIRST: u64 = 0x1000;
/// Addresses between sections: the address behind a section is in no other.
const GAP: u64 = 0x10;
/// A section is aligned to a page at most.
const MAX_ALIGN: u64 = 0x1000;
/// The end of the addresses. The kernel has 1.5 GiB for all modules together.
const MAX_ADDRESS: u64 = 2 << 30;
/// Instructions that the kernel copies over others before a processor executes the module.
const NOT_EXECUTED: [&[u8]; 2] = [b".altinstr_replacement", b".altinstr_aux"];

/// The addresses of a module's sections.
#[derive(Debug)]
pub(crate) struct SectionAddresses {
    by_index: Vec<u64>,
    /// The sections with code that a processor executes where it is, in ascending order.
    executed: Vec<Range<u64>>,
}

impl SectionAddresses {
    /// Gives each loaded section of `elf` an address.
    pub(crate) fn of_module<'data, R: ReadRef<'data>>(
        elf: &ElfFile64<'data, LittleEndian, R>,
    ) -> Result<Self, OpenError> {
        let mut next = FIRST;
        let (mut addresses, mut executed) = (Vec::new(), Vec::new());
        let table = elf.elf_section_table();
        for header in table.iter() {
            let has = |flag| header.sh_flags(LittleEndian) & flag == flag;
            let is_loaded = has(elf::SHF_ALLOC);
            if !is_loaded {
                addresses.push(0);
                continue;
            }
            let align = header.sh_addralign(LittleEndian).clamp(1, MAX_ALIGN);
            let address = next.next_multiple_of(align);
            addresses.push(address);
            let end = address.checked_add(header.sh_size(LittleEndian));
            let end = end.filter(|&end| end < MAX_ADDRESS);
            let end = end.ok_or(OpenError::TooLarge { max: MAX_ADDRESS })?;
            let name = table.section_name(LittleEndian, header);
            if has(elf::SHF_EXECINSTR) && name.is_ok_and(|name| !NOT_EXECUTED.contains(&name)) {
                executed.push(address..end);
            }
            next = end + GAP;
        }
        Ok(Self {
            by_index: addresses,
            executed,
        })
    }

    /// The sections with code that a processor executes where it is, in ascending order.
    pub(crate) fn into_executed(self) -> Vec<Range<u64>> {
        self.executed
    }

    /// The address of a section; 0 for a section that is not loaded, in which addresses are offsets.
    pub(crate) fn section(&self, index: SectionIndex) -> u64 {
        self.by_index.get(index.0).copied().unwrap_or(0)
    }

    /// Relocates `contents`, which are those of the debug section `section` called `name`.
    pub(crate) fn relocate<'data, R: ReadRef<'data>>(
        &self,
        elf: &ElfFile64<'data, LittleEndian, R>,
        section: &impl ObjectSection<'data>,
        name: &'static str,
        contents: &mut [u8],
    ) -> Result<(), OpenError> {
        for (offset, relocation) in section.relocations() {
            let failed = || OpenError::Relocation {
                section: name,
                offset,
            };
            let base = match (relocation.kind(), relocation.target()) {
                (RelocationKind::None, _) => continue,
                (RelocationKind::Absolute, RelocationTarget::Symbol(symbol)) => {
                    self.symbol(elf, symbol).ok_or_else(failed)?
                }
                (RelocationKind::Absolute, RelocationTarget::Absolute) => 0,
                _ => return Err(failed()),
            };
            let value = base.wrapping_add_signed(relocation.addend());
            let wide = value.to_le_bytes();
            let bytes = match relocation.size() {
                64 => &wide[..],
                32 if u32::try_from(value).is_ok() => &wide[..4],
                _ => return Err(failed()),
            };
            let place = usize::try_from(offset)
                .ok()
                .and_then(|start| contents.get_mut(start..)?.get_mut(..bytes.len()));
            place.ok_or_else(failed)?.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// The address of a symbol; 0 for a symbol of the kernel or of another module.
    fn symbol<'data, R: ReadRef<'data>>(
        &self,
        elf: &ElfFile64<'data, LittleEndian, R>,
        index: SymbolIndex,
    ) -> Option<u64> {
        let symbol = elf.symbol_by_index(index).ok()?;
        let section = match symbol.section() {
            SymbolSection::Section(index) => self.section(index),
            _ => 0,
        };
        Some(section.wrapping_add(symbol.address()))
    }
}
