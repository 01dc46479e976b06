//! The names of functions, of which an inlined copy refers to the original.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{Attribute, AttributeValue, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::other_units::{OtherUnits, attributes_at};
use crate::paths;
use crate::reader::{Slice, referred};
use crate::unit_reader::UnitReader;
use crate::units::UnitIndex;

/// An inlined copy refers to the abstract function, which may refer to a declaration.
const MAX_REFERENCES: usize = 8;
/// Longer names are cut.
const MAX_NAME_BYTES: usize = 1024;

/// Follows references to names.
pub(crate) struct Names<'d, 'a> {
    others: OtherUnits<'d, 'a>,
    /// By the offset of the entry in `.debug_info`.
    known: HashMap<usize, Option<Name>>,
}

impl<'d, 'a> Names<'d, 'a> {
    pub(crate) fn new(reader: &'d UnitReader<'a>, units: &'d [UnitIndex]) -> Self {
        Self {
            others: OtherUnits::new(reader, units),
            known: HashMap::new(),
        }
    }

    /// The name of the function with `attributes`.
    pub(crate) fn of_entry(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        attributes: &[Attribute<Slice<'a>>],
        budget: &mut Budget,
    ) -> Result<Option<Name>, LookupError> {
        match step(unit, attributes, budget)? {
            Step::Name(text) => Ok(Some(Name { text, entry: None })),
            Step::Reference(offset) => self.at(unit, offset, budget),
            Step::Nameless => Ok(None),
        }
    }

    /// The path and the line of the function's declaration, if the entry with the name has them.
    pub(crate) fn declaration(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        name: &Name,
        budget: &mut Budget,
    ) -> Result<Option<(String, u64)>, LookupError> {
        let Some(offset) = name.entry else {
            return Ok(None);
        };
        let Some(unit) = self.others.unit_with(unit, offset, budget)? else {
            return Ok(None);
        };
        let attributes = attributes_at(unit, offset)?;
        budget.spend(attributes.len() + 1)?;
        let (mut file, mut line) = (None, None);
        for attribute in &attributes {
            match (attribute.name(), attribute.value()) {
                (gimli::DW_AT_decl_file, AttributeValue::FileIndex(index)) => file = Some(index),
                (gimli::DW_AT_decl_line, _) => line = attribute.udata_value(),
                _ => (),
            }
        }
        let (Some(program), Some(file), Some(line)) = (&unit.line_program, file, line) else {
            return Ok(None);
        };
        let path = paths::of_file(unit, program.header(), file, budget)?;
        Ok(path.map(|path| (path, line)))
    }

    /// The name of the function with the entry at `offset` of `.debug_info`.
    fn at(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Option<Name>, LookupError> {
        if let Some(name) = self.known.get(&offset) {
            return Ok(name.clone());
        }
        let mut at = offset;
        let mut name = None;
        for _ in 0..MAX_REFERENCES {
            let Some(unit) = self.others.unit_with(unit, at, budget)? else {
                break;
            };
            match step(unit, &attributes_at(unit, at)?, budget)? {
                Step::Name(text) => {
                    let entry = Some(at);
                    name = Some(Name { text, entry });
                    break;
                }
                Step::Reference(next) => at = next,
                Step::Nameless => break,
            }
        }
        self.known.insert(offset, name.clone());
        Ok(name)
    }
}

/// The name of a function.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    /// Shared: a function may have thousands of copies.
    pub(crate) text: Arc<str>,
    /// The offset of the entry with the name in `.debug_info`, if a copy refers to that entry.
    entry: Option<usize>,
}

/// An entry's name, or the entry to which it refers.
enum Step {
    Name(Arc<str>),
    Reference(usize),
    Nameless,
}

fn step<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    attributes: &[Attribute<Slice<'a>>],
    budget: &mut Budget,
) -> Result<Step, LookupError> {
    budget.spend(attributes.len() + 1)?;
    let mut reference = None;
    for attribute in attributes {
        match (attribute.name(), attribute.value()) {
            (gimli::DW_AT_name, value) => {
                let name = paths::string(unit, value)?;
                budget.spend_string(name.len())?;
                let bytes = name.slice();
                let bytes = &bytes[..bytes.len().min(MAX_NAME_BYTES)];
                return Ok(Step::Name(String::from_utf8_lossy(bytes).into()));
            }
            (gimli::DW_AT_abstract_origin | gimli::DW_AT_specification, value) => {
                reference = referred(unit, &value);
            }
            _ => (),
        }
    }
    Ok(reference.map_or(Step::Nameless, Step::Reference))
}
