//! Opens units.
//!
//! gimli reads a unit's table of abbreviations and the header of the line program before a look-up sees an entry. In a damaged file, many
//! units may share large tables and headers, so both are charged to the budget of the look-up, and tables are kept.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use gimli::{
    Abbreviations, Attribute, AttributeValue, DebugAbbrevOffset, DebugInfoOffset, DebugLineOffset,
    Dwarf, DwarfSections, EndianSlice, LittleEndian, Reader as _, Section as _, Unit, UnitHeader,
    UnitRef,
};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::reader::{Slice, damaged};

/// A table of abbreviations, and the header of a line program, has less than 1 MiB. gimli needs 25 to 120 bytes of memory for each byte.
const MAX_TABLE_BYTES: usize = 2 << 20;

/// Opens the units of a file during one look-up.
pub(crate) struct UnitReader<'a> {
    dwarf: Dwarf<Slice<'a>>,
    tables: RefCell<Tables>,
}

/// The latest tables of abbreviations.
#[derive(Default)]
struct Tables {
    /// By the offset in `.debug_abbrev`.
    known: HashMap<usize, Arc<Abbreviations>>,
    /// The size of the known tables in the file.
    bytes: usize,
}

impl<'a> UnitReader<'a> {
    /// A reader of `sections`.
    pub(crate) fn new(sections: &'a DwarfSections<Vec<u8>>) -> Self {
        Self {
            dwarf: sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian)),
            tables: RefCell::default(),
        }
    }

    /// The sections as gimli reads them.
    pub(crate) const fn dwarf(&self) -> &Dwarf<Slice<'a>> {
        &self.dwarf
    }

    /// A unit with the sections.
    pub(crate) fn unit_ref<'r>(&'r self, unit: &'r Unit<Slice<'a>>) -> UnitRef<'r, Slice<'a>> {
        unit.unit_ref(&self.dwarf)
    }

    /// Opens the unit with the header at `offset` of `.debug_info`.
    pub(crate) fn open(
        &self,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Unit<Slice<'a>>, LookupError> {
        let header = self.dwarf.unit_header(DebugInfoOffset(offset));
        self.open_header(header.map_err(damaged(offset))?, budget)
    }

    /// Opens the unit with `header`.
    pub(crate) fn open_header(
        &self,
        header: UnitHeader<Slice<'a>>,
        budget: &mut Budget,
    ) -> Result<Unit<Slice<'a>>, LookupError> {
        let failed = damaged(header.debug_info_offset().map_or(0, |offset| offset.0));
        let DebugAbbrevOffset(table) = header.debug_abbrev_offset();
        let abbreviations = self.abbreviations(table, budget, &failed)?;
        let mut attributes = Vec::new();
        let mut entries = header.entries_raw(&abbreviations, None).map_err(&failed)?;
        if let Some(abbreviation) = entries.read_abbreviation().map_err(&failed)? {
            budget.spend(abbreviation.attributes().len())?;
            entries
                .read_attributes(abbreviation.attributes(), &mut attributes)
                .map_err(&failed)?;
        }
        if let Some(program) = line_program(&attributes) {
            let bytes = self.line_header_bytes(program).map_err(&failed)?;
            spend_table(bytes, budget)?;
        }
        let unit = Unit::new_with_abbreviations(&self.dwarf, header, abbreviations);
        let unit = unit.map_err(&failed)?;
        for text in [unit.name, unit.comp_dir].into_iter().flatten() {
            budget.spend_string(text.len())?;
        }
        Ok(unit)
    }

    fn abbreviations(
        &self,
        offset: usize,
        budget: &mut Budget,
        failed: &impl Fn(gimli::Error) -> LookupError,
    ) -> Result<Arc<Abbreviations>, LookupError> {
        let mut tables = self.tables.borrow_mut();
        if let Some(known) = tables.known.get(&offset) {
            return Ok(Arc::clone(known));
        }
        let bytes = self.table_bytes(offset).map_err(failed)?;
        spend_table(bytes, budget)?;
        let offset_in_section = DebugAbbrevOffset(offset);
        let table = self.dwarf.debug_abbrev.abbreviations(offset_in_section);
        let table = Arc::new(table.map_err(failed)?);
        if tables.bytes + bytes > MAX_TABLE_BYTES {
            *tables = Tables::default();
        }
        tables.bytes += bytes;
        tables.known.insert(offset, Arc::clone(&table));
        Ok(table)
    }

    /// The size of the table of abbreviations at `offset`: gimli does not say where a table ends.
    fn table_bytes(&self, offset: usize) -> gimli::Result<usize> {
        let mut table = *self.dwarf.debug_abbrev.reader();
        table.skip(offset)?;
        let before = table.len();
        while table.read_uleb128()? != 0 {
            let _tag = table.read_uleb128()?;
            let _has_children = table.read_u8()?;
            loop {
                let name = table.read_uleb128()?;
                let form = table.read_uleb128()?;
                if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                    table.read_sleb128()?;
                }
                if (name, form) == (0, 0) {
                    break;
                }
            }
        }
        Ok(before - table.len())
    }

    /// The size of the header of a line program: paths of directories and files.
    fn line_header_bytes(&self, DebugLineOffset(offset): DebugLineOffset) -> gimli::Result<usize> {
        let mut program = *self.dwarf.debug_line.reader();
        program.skip(offset)?;
        let (_, format) = program.read_initial_length()?;
        if program.read_u16()? >= 5 {
            // The sizes of addresses and of segment selectors.
            program.skip(2)?;
        }
        program.read_length(format)
    }
}

fn line_program(attributes: &[Attribute<Slice<'_>>]) -> Option<DebugLineOffset> {
    attributes
        .iter()
        .find_map(|attribute| match (attribute.name(), attribute.value()) {
            (gimli::DW_AT_stmt_list, AttributeValue::DebugLineRef(offset)) => Some(offset),
            _ => None,
        })
}

fn spend_table(bytes: usize, budget: &mut Budget) -> Result<(), LookupError> {
    if bytes > MAX_TABLE_BYTES {
        return Err(LookupError::TooComplex);
    }
    budget.spend(bytes)
}
