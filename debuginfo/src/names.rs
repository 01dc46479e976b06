//! The names of functions, of which an inlined copy refers to the original.

use std::collections::HashMap;

use gimli::{Attribute, AttributeValue, Unit, UnitOffset, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
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
    known: HashMap<usize, Option<String>>,
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
    ) -> Result<Option<String>, LookupError> {
        match step(unit, attributes, budget)? {
            Step::Name(name) => Ok(Some(name)),
            Step::Reference(offset) => self.at(unit, offset, budget),
            Step::Nameless => Ok(None),
        }
    }

    /// The name of the function with the entry at `offset` of `.debug_info`.
    fn at(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Option<String>, LookupError> {
        if let Some(name) = self.known.get(&offset) {
            return Ok(name.clone());
        }
        let mut at = offset;
        let mut name = None;
        for _ in 0..MAX_REFERENCES {
            match self.step_at(unit, at, budget)? {
                Step::Name(found) => {
                    name = Some(found);
                    break;
                }
                Step::Reference(next) => at = next,
                Step::Nameless => break,
            }
        }
        self.known.insert(offset, name.clone());
        Ok(name)
    }

    fn step_at(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Step, LookupError> {
        let own = offset_of(unit);
        let end = own + unit.header.length_including_self();
        if (own..end).contains(&offset) {
            return entry_at(unit, offset, budget);
        }
        let Some(index) = units::with_entry(self.units, offset) else {
            return Ok(Step::Nameless);
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
        let other = self.reader.unit_ref(&self.others[&index]);
        entry_at(other, offset, budget)
    }
}

/// An entry's name, or the entry to which it refers.
enum Step {
    Name(String),
    Reference(usize),
    Nameless,
}

fn entry_at(
    unit: UnitRef<'_, Slice<'_>>,
    offset: usize,
    budget: &mut Budget,
) -> Result<Step, LookupError> {
    let failed = damaged(offset_of(unit));
    let Some(within) = offset.checked_sub(offset_of(unit)) else {
        return Ok(Step::Nameless);
    };
    let entry = unit.entry(UnitOffset(within)).map_err(failed)?;
    step(unit, entry.attrs(), budget)
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
                let name = crate::paths::string(unit, value)?;
                budget.spend_string(name.len())?;
                let bytes = name.slice();
                let bytes = &bytes[..bytes.len().min(MAX_NAME_BYTES)];
                return Ok(Step::Name(String::from_utf8_lossy(bytes).into_owned()));
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
