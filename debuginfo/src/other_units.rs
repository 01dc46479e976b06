//! Units that the entries of another unit refer to: the units of a kernel that is optimised as a whole refer to each other.

use std::collections::HashMap;

use gimli::{Attribute, Unit, UnitOffset, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::reader::{Slice, damaged, offset_of};
use crate::unit_reader::UnitReader;
use crate::units::{self, UnitIndex};

/// The most steps of opening the kept units, a measure of their memory: a step is a byte of a table, for which gimli needs 25 bytes or more.
const MAX_STEPS: u64 = 8 << 20;

/// The units that a look-up has opened beside its own.
pub(crate) struct OtherUnits<'d, 'a> {
    reader: &'d UnitReader<'a>,
    units: &'d [UnitIndex],
    /// By their index.
    opened: HashMap<usize, Unit<Slice<'a>>>,
    /// The steps of opening them.
    steps: u64,
}

impl<'d, 'a> OtherUnits<'d, 'a> {
    pub(crate) fn new(reader: &'d UnitReader<'a>, units: &'d [UnitIndex]) -> Self {
        Self {
            reader,
            units,
            opened: HashMap::new(),
            steps: 0,
        }
    }

    /// The unit with the entry at `offset` of `.debug_info`: `unit` or another.
    pub(crate) fn unit_with<'s>(
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
        if !self.opened.contains_key(&index) {
            let before = *budget;
            let other = self.reader.open(self.units[index].offset, budget)?;
            let steps = before.since(*budget);
            if self.steps + steps > MAX_STEPS {
                self.opened.clear();
                self.steps = 0;
            }
            self.steps += steps;
            self.opened.insert(index, other);
        }
        Ok(Some(self.reader.unit_ref(&self.opened[&index])))
    }
}

/// The attributes of the entry at `offset` of `.debug_info`, which is in `unit`.
pub(crate) fn attributes_at<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    offset: usize,
) -> Result<Vec<Attribute<Slice<'a>>>, LookupError> {
    let within = UnitOffset(offset.saturating_sub(offset_of(unit)));
    let entry = unit.entry(within).map_err(damaged(offset_of(unit)))?;
    Ok(entry.attrs().to_vec())
}
