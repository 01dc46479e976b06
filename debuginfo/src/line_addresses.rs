//! The addresses of a line.

use std::collections::{BTreeMap, HashMap};

use address::Gva;
use gimli::UnitRef;

use crate::budget::Budget;
use crate::contents::Contents;
use crate::error::{LineError, LookupError};
use crate::paths;
use crate::reader::Slice;
use crate::scopes::{self, ScopeEntry, SourcePlace};
use crate::unit_lines::UnitLines;

/// The most files in an error.
const MAX_FILES: usize = 8;

/// Why an address is a place of the line in a scope, the best reason first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// A statement begins there, and the instruction belongs to the line.
    Statement,
    /// A copy begins there that is inlined in place of a call in the line: such a call may have no row.
    Copy,
    /// The instruction belongs to the line. The compiler does so where it has moved the statement's beginning before other code.
    Instruction,
    /// A row without an instruction of its own, because the next row has the same address: the instruction there belongs to another line, and
    /// often to the code behind an inlined copy.
    EmptyRow,
}

/// A place in a scope.
#[derive(Clone, Copy, Debug)]
struct Place {
    reason: Reason,
    /// The number of the scope's range.
    range: usize,
    address: u64,
    scope: Option<ScopeEntry>,
}

impl Place {
    /// Least for the best place of a scope. The ranges come before the reasons: seldom executed code is in a later range, and most executions
    /// of the line do not come there.
    fn rank(self) -> (bool, usize, Reason, u64) {
        let is_empty = self.reason == Reason::EmptyRow;
        (is_empty, self.range, self.reason, self.address)
    }
}

/// The line of the request, and what units have of the line.
struct Search<'r> {
    file: &'r str,
    line: u64,
    is_known: bool,
    /// The places by path.
    places: BTreeMap<String, Vec<Place>>,
    /// The next line with code.
    next: Option<u64>,
}

/// The places of line `line`: one for each function and each inlined copy that has code of the line.
pub(crate) fn find(
    contents: &Contents,
    file: &str,
    line: u64,
) -> Result<Vec<SourcePlace>, LineError> {
    let mut budget = contents.budget();
    let mut search = Search {
        file,
        line,
        is_known: false,
        places: BTreeMap::new(),
        next: None,
    };
    let reader = contents.reader();
    for unit in &contents.list.units {
        let unit = reader.open(unit.offset, &mut budget)?;
        search.unit(reader.unit_ref(&unit), &mut budget)?;
    }
    search.answer(contents)
}

impl Search<'_> {
    /// Adds the places in `unit`.
    fn unit(
        &mut self,
        unit: UnitRef<'_, Slice<'_>>,
        budget: &mut Budget,
    ) -> Result<(), LookupError> {
        let files = matching_files(unit, self.file, budget)?;
        if files.is_empty() {
            return Ok(());
        }
        self.is_known = true;
        // The line needs no names.
        let lines = UnitLines::decode(unit, budget, |_, _| Ok(()))?;
        let in_files = lines.rows().filter(|row| files.contains_key(&row.file));
        let later = in_files
            .map(|row| row.line)
            .filter(|&line| line > self.line);
        self.next = later.chain(self.next).min();
        for (path, places) in places(&lines, &files, self.line, budget)? {
            self.places
                .entry(path.to_owned())
                .or_default()
                .extend(places);
        }
        Ok(())
    }

    fn answer(mut self, contents: &Contents) -> Result<Vec<SourcePlace>, LineError> {
        let file = self.file.to_owned();
        if !self.is_known {
            return Err(LineError::NoFile { file });
        }
        let is_code = |place: &Place| place.reason != Reason::EmptyRow;
        if self.places.values().flatten().any(is_code) {
            self.places.retain(|_, places| {
                places.retain(is_code);
                !places.is_empty()
            });
        }
        let mut places = self.places.into_iter();
        match (places.next(), places.next()) {
            (None, _) => Err(LineError::NoCode {
                file,
                line: self.line,
                next: self.next,
            }),
            (Some((_, places)), None) => {
                let mut scopes = BTreeMap::new();
                for place in places {
                    scopes.entry(Gva(place.address)).or_insert(place.scope);
                }
                let places = scopes.into_iter();
                Ok(places
                    .map(|(address, scope)| SourcePlace { address, scope })
                    .collect())
            }
            (Some(first), Some(second)) => {
                let paths = [first, second].into_iter().chain(places).take(MAX_FILES);
                Err(LineError::Ambiguous {
                    file,
                    line: self.line,
                    files: paths.map(|(path, _)| contents.shown(&path)).collect(),
                })
            }
        }
    }
}

/// The files of the unit's line program with paths that end in `suffix`, by index.
fn matching_files(
    unit: UnitRef<'_, Slice<'_>>,
    suffix: &str,
    budget: &mut Budget,
) -> Result<HashMap<u64, String>, LookupError> {
    let mut files = HashMap::new();
    let Some(program) = &unit.line_program else {
        return Ok(files);
    };
    let header = program.header();
    let wanted = paths::file_name(suffix.as_bytes());
    // The first file is number 1 up to DWARF 4, and number 0 since.
    for index in 0..=header.file_names().len() as u64 {
        let Some(file) = header.file(index) else {
            continue;
        };
        let name = paths::string(unit, file.path_name())?;
        budget.spend_string(name.len())?;
        if paths::file_name(name.slice()) == wanted
            && let Some(path) = paths::of_file(unit, header, index, budget)?
            && paths::ends_in(&path, suffix)
        {
            files.insert(index, path);
        }
    }
    Ok(files)
}

/// An address that may be a place.
struct Candidate<'f> {
    address: u64,
    path: &'f str,
    origin: Origin,
}

/// What makes an address a candidate.
enum Origin {
    Row {
        is_statement: bool,
    },
    /// The entry of the scope with this index, an inlined copy.
    Copy(usize),
}

/// The places of line `line` in a unit, by path. A path may have several numbers in `files`.
fn places<'f>(
    unit: &UnitLines,
    files: &'f HashMap<u64, String>,
    line: u64,
    budget: &mut Budget,
) -> Result<BTreeMap<&'f str, Vec<Place>>, LookupError> {
    let mut candidates = candidates(unit, files, line);
    candidates.sort_by_key(|candidate| candidate.address);
    let addresses: Vec<u64> = candidates
        .iter()
        .map(|candidate| candidate.address)
        .collect();
    let chains = scopes::chains(&unit.scopes, &addresses, budget)?;
    let mut best: BTreeMap<(&str, Around), Place> = BTreeMap::new();
    for (candidate, chain) in candidates.iter().zip(chains) {
        budget.spend_string(candidate.path.len())?;
        let line_of_file = LineOfFile {
            unit,
            files,
            path: candidate.path,
            line,
        };
        let (around, reason) = line_of_file.judge(candidate, &chain);
        let scope = match around {
            Around::Scope(scope) => Some(&unit.scopes[scope]),
            Around::Address(_) => None,
        };
        let place = Place {
            reason,
            range: scope.map_or(0, |scope| scope.range_of(candidate.address)),
            address: candidate.address,
            scope: scope.map(|scope| scope.entries),
        };
        let known = best.entry((candidate.path, around)).or_insert(place);
        if place.rank() < known.rank() {
            *known = place;
        }
    }
    let mut places: BTreeMap<&str, Vec<Place>> = BTreeMap::new();
    for ((path, _), place) in best {
        places.entry(path).or_default().push(place);
    }
    Ok(places)
}

fn candidates<'f>(
    unit: &UnitLines,
    files: &'f HashMap<u64, String>,
    line: u64,
) -> Vec<Candidate<'f>> {
    let rows = unit.rows().filter(|row| row.line == line);
    let rows = rows.filter_map(|row| {
        Some(Candidate {
            address: row.address,
            path: files.get(&row.file)?,
            origin: Origin::Row {
                is_statement: row.is_statement,
            },
        })
    });
    let copies = unit.scopes.iter().enumerate();
    let copies = copies.filter_map(|(index, scope)| {
        let call = scope.call.filter(|call| call.line == line)?;
        Some(Candidate {
            address: scope.entry,
            path: files.get(&call.file)?,
            origin: Origin::Copy(index),
        })
    });
    rows.chain(copies).collect()
}

/// The scope that has a candidate; code of an assembler has none, and each row is a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Around {
    Scope(usize),
    Address(u64),
}

/// The line of the request in one file, in a unit.
struct LineOfFile<'a> {
    unit: &'a UnitLines,
    files: &'a HashMap<u64, String>,
    path: &'a str,
    line: u64,
}

impl LineOfFile<'_> {
    /// The scope that has the candidate, and the reason. `chain` are the scopes at the address.
    fn judge(&self, candidate: &Candidate<'_>, chain: &[usize]) -> (Around, Reason) {
        let address = candidate.address;
        let at_level = |level: usize| {
            chain
                .get(level)
                .map_or(Around::Address(address), |&scope| Around::Scope(scope))
        };
        let is_statement = match candidate.origin {
            Origin::Copy(copy) => {
                let level = chain.iter().position(|&scope| scope == copy);
                return (at_level(level.map_or(0, |level| level + 1)), Reason::Copy);
            }
            Origin::Row { is_statement } => is_statement,
        };
        // Where an inlined copy begins, the row of the call has the same address, and the call is in the scope around.
        let places = self.unit.places(chain, address);
        let owner = places.iter().position(|place| {
            place.is_some_and(|(file, line)| {
                let path = self.files.get(&file);
                line == self.line && path.is_some_and(|path| path == self.path)
            })
        });
        match owner {
            Some(level) if is_statement => (at_level(level), Reason::Statement),
            Some(level) => (at_level(level), Reason::Instruction),
            // The instruction is in another scope than the line, but in the same function.
            None => (at_level(chain.len().saturating_sub(1)), Reason::EmptyRow),
        }
    }
}
