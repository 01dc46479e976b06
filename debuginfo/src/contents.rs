//! The parts of a file that look-ups need.

use std::path::Path;

use crate::budget::Budget;
use crate::elf::{ElfParts, FileKind};
use crate::error::{LookupError, OpenError};
use crate::names::Names;
use crate::unit_frames::UnitFrames;
use crate::unit_reader::UnitReader;
use crate::units::{self, UnitList};

/// The sections of a file, and the list of its units.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) parts: ElfParts,
    pub(crate) list: UnitList,
}

impl Contents {
    /// Reads the file at `path`, which belongs to a kernel or a module.
    pub(crate) fn read(path: &Path, kind: FileKind) -> Result<Self, OpenError> {
        let parts = ElfParts::read(path, kind)?;
        let mut budget = Budget::of_bytes(parts.bytes);
        let list = units::index(&UnitReader::new(&parts.sections), &mut budget)?;
        Ok(Self { parts, list })
    }

    /// The budget of one look-up.
    pub(crate) const fn budget(&self) -> Budget {
        Budget::of_bytes(self.parts.bytes)
    }

    /// The reader of units for one look-up.
    pub(crate) fn reader(&self) -> UnitReader<'_> {
        UnitReader::new(&self.parts.sections)
    }

    /// Decodes a unit.
    pub(crate) fn decode(
        &self,
        index: usize,
        budget: &mut Budget,
    ) -> Result<UnitFrames, LookupError> {
        let reader = self.reader();
        let unit = reader.open(self.list.units[index].offset, budget)?;
        let mut names = Names::new(&reader, &self.list.units);
        UnitFrames::decode(reader.unit_ref(&unit), &mut names, budget)
    }

    /// A path relative to the directory of the sources, if it is there.
    pub(crate) fn shown(&self, path: &str) -> String {
        let mut roots = self.list.roots.iter();
        let within = roots.find_map(|root| path.strip_prefix(root.as_str()));
        within.unwrap_or(path).to_owned()
    }
}
