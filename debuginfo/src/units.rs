//! The compilation units of a file, and the addresses of each.

use std::collections::BTreeSet;
use std::ops::Range;

use gimli::{Attribute, DebugInfoOffset};

use crate::budget::Budget;
use crate::error::OpenError;
use crate::reader::{Slice, damaged};
use crate::unit_reader::UnitReader;
use crate::{paths, ranges};

/// Sources of every kernel, in C and for the assembler: the paths of the two may begin at different directories, and the sources of some
/// units may be outside the kernel's.
const IN_KERNEL: [&str; 2] = ["init/main.c", "arch/x86/entry/entry_64.S"];
/// A file with more directories is damaged.
const MAX_ROOTS: usize = 4;

/// A compilation unit.
#[derive(Debug)]
pub(crate) struct UnitIndex {
    /// The offset of the unit's header in `.debug_info`.
    pub(crate) offset: usize,
    /// The addresses of the unit's code.
    ranges: Vec<Range<u64>>,
}

impl UnitIndex {
    /// Whether the unit has the code at `address`.
    pub(crate) fn holds(&self, address: u64) -> bool {
        ranges::hold(&self.ranges, address)
    }
}

/// The units in the order of the file, and the directory of the sources.
#[derive(Debug)]
pub(crate) struct UnitList {
    pub(crate) units: Vec<UnitIndex>,
    /// The directories, with a slash at the end, that are left out of shown paths, the longest first: those of the kernel, and that of all
    /// sources.
    pub(crate) roots: Vec<String>,
}

impl UnitList {
    /// Puts the directories `kernel` in place of the directories within.
    pub(crate) fn prefer_roots(&mut self, kernel: &[String]) {
        let kernel = kernel.iter().filter(|root| !root.is_empty());
        self.roots
            .retain(|own| kernel.clone().all(|root| !own.starts_with(root.as_str())));
        self.roots.extend(kernel.cloned());
        sort_roots(&mut self.roots);
    }
}

/// Puts the longest first: a directory may be within another.
fn sort_roots(roots: &mut [String]) {
    roots.sort_by_key(|root| std::cmp::Reverse(root.len()));
}

/// Reads the header and the root entry of each unit.
pub(crate) fn index(reader: &UnitReader<'_>, budget: &mut Budget) -> Result<UnitList, OpenError> {
    let mut units = Vec::new();
    let mut root: Option<String> = None;
    let mut roots = BTreeSet::new();
    let mut headers = reader.dwarf().units();
    let mut next = 0;
    while let Some(header) = headers.next().map_err(damaged(next))? {
        let Some(DebugInfoOffset(offset)) = header.debug_info_offset() else {
            continue;
        };
        next = offset + header.length_including_self();
        let failed = damaged(offset);
        let unit = reader.open_header(header, budget)?;
        let unit = reader.unit_ref(&unit);
        let mut entries = unit.entries();
        let root_entry = entries.next_dfs().map_err(&failed)?;
        let attributes = root_entry.map_or(&[][..], |entry| entry.attrs());
        if unit.dwo_id.is_some() || attributes.iter().any(names_other_file) {
            return Err(OpenError::Split);
        }
        let found = ranges::of_entry(unit, attributes, budget, &failed)?;
        // Units of types and data alone say nothing of where the code's sources are.
        if !found.is_empty()
            && let Some(path) = paths::of_unit(unit, budget)?
        {
            let kernel = IN_KERNEL.iter().find_map(|known| path.strip_suffix(known));
            if let Some(kernel) = kernel.filter(|kernel| kernel.ends_with('/'))
                && roots.len() < MAX_ROOTS
            {
                roots.insert(kernel.to_owned());
            }
            root = Some(match root {
                None => paths::directory(&path).to_owned(),
                Some(root) => paths::common_directory(&root, &path).to_owned(),
            });
        }
        units.push(UnitIndex {
            offset,
            ranges: found,
        });
    }
    let mut roots: Vec<String> = roots.into_iter().chain(root).collect();
    sort_roots(&mut roots);
    Ok(UnitList { units, roots })
}

/// Whether `attribute` of a unit says that the unit's functions are in another file.
fn names_other_file(attribute: &Attribute<Slice<'_>>) -> bool {
    matches!(
        attribute.name(),
        gimli::DW_AT_dwo_name | gimli::DW_AT_GNU_dwo_name
    )
}

/// The index of the unit with the entry at `offset` of `.debug_info`.
pub(crate) fn with_entry(units: &[UnitIndex], offset: usize) -> Option<usize> {
    units
        .partition_point(|unit| unit.offset <= offset)
        .checked_sub(1)
}
