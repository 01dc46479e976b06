//! The names of functions, of which an inlined copy refers to the original.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{Attribute, AttributeValue, Unit, UnitOffset, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::paths;
use crate::reader::{Slice, damaged, offset_of};
use crate::unit_reader::UnitReader;
use crate::units::{self, UnitIndex};

/// An inlined copy refers to the abstract function, which may refer to a declaration.
const MAX_REFERENCES: usize = 8;
/// Longer names are cut.
const MAX_NAME_BYTES: usize = 1024;
/// The most steps of opening the kept units, a measure of their memory: a step is a byte of a table, for which gimli needs 25 bytes or more.
const MAX_OTHERS_STEPS: u64 = 8 << 20;

/// Follows references to names. The units of a kernel that is optimised as a whole refer to each other.
pub(crate) struct Names<'d, 'a> {
    reader: &'d UnitReader<'a>,
    units: &'d [UnitIndex],
    /// Units other than the own, by their index.
    others: HashMap<usize, Unit<Slice<'a>>>,
    /// The steps of opening the others.
    others_steps: u64,
    /// By the offset of the entry in `.debug_info`.
    known: HashMap<usize, Option<Name>>,
}

impl<'d, 'a> Names<'d, 'a> {
    pub(crate) fn new(reader: &'d UnitReader<'a>, units: &'d [UnitIndex]) -> Self {
        Self {
            reader,
            units,
            others: HashMap::new(),
            others_steps: 0,
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
        let Some(unit) = self.unit_with(unit, offset, budget)? else {
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
            let Some(unit) = self.unit_with(unit, at, budget)? else {
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

    /// The unit with the entry at `offset` of `.debug_info`: `unit` or another.
    fn unit_with<'s>(
        &'s mut self,
        unit: UnitRef<'s, Slice<'a>>,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Option<UnitRef<'s, Slice<'a>>>, LookupError> {
        let own = offset_of(unit);
        let end = own + unit.header.length_including_self();
        if (own..end).contains(&offset) {
            return Ok(Some(unit));
        }
        let Some(index) = units::with_entry(self.units, offset) else {
            return Ok(None);
        };
        if !self.others.contains_key(&index) {
            let before = *budget;
            let other = self.reader.open(self.units[index].offset, budget)?;
            let steps = before.since(*budget);
            if self.others_steps + steps > MAX_OTHERS_STEPS {
                self.others.clear();
                self.others_steps = 0;
            }
            self.others_steps += steps;
            self.others.insert(index, other);
        }
        Ok(Some(self.reader.unit_ref(&self.others[&index])))
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

/// The attributes of the entry at `offset` of `.debug_info`, which is in `unit`.
fn attributes_at<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    offset: usize,
) -> Result<Vec<Attribute<Slice<'a>>>, LookupError> {
    let within = UnitOffset(offset.saturating_sub(offset_of(unit)));
    let entry = unit.entry(within).map_err(damaged(offset_of(unit)))?;
    Ok(entry.attrs().to_vec())
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
                reference = match value {
                    AttributeValue::UnitRef(UnitOffset(within)) => {
                        offset_of(unit).checked_add(within)
                    }
                    AttributeValue::DebugInfoRef(offset) => Some(offset.0),
                    _ => None,
                };
            }
            _ => (),
        }
    }
    Ok(reference.map_or(Step::Nameless, Step::Reference))
}
