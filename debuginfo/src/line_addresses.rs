//! The addresses of a line.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use address::Gva;
use gimli::UnitRef;

use crate::budget::Budget;
use crate::contents::Contents;
use crate::error::{LineError, LookupError};
use crate::reader::Slice;
use crate::unit_lines::{UnitLines, sequences};
use crate::{paths, reader, scopes, units};

/// The most files in an error.
const MAX_FILES: usize = 8;

/// The code of the line in one unit.
struct InUnit {
    unit: usize,
    addresses: Vec<u64>,
}

/// The rows of a line.
#[derive(Default)]
struct Rows {
    /// The units that name the file.
    units: Vec<usize>,
    /// By path.
    found: BTreeMap<String, Vec<InUnit>>,
    /// The next line with code.
    next: Option<u64>,
}

/// The addresses of line `line`.
pub(crate) fn find(contents: &Contents, file: &str, line: u64) -> Result<Vec<Gva>, LineError> {
    let mut budget = contents.budget();
    let Rows { units, found, next } = rows(contents, file, line, &mut budget)?;
    if units.is_empty() {
        let file = file.to_owned();
        return Err(LineError::NoFile { file });
    }
    let places = match found.is_empty() {
        true => inlined_calls(contents, file, line, &units, &mut budget)?,
        false => found
            .into_iter()
            .map(|(path, units)| {
                let places = one_for_each_scope(contents, &path, line, units, &mut budget)?;
                Ok((path, places))
            })
            .collect::<Result<_, LookupError>>()?,
    };
    let mut places = places.into_iter();
    match (places.next(), places.next()) {
        (None, _) => Err(LineError::NoCode {
            file: file.to_owned(),
            line,
            next,
        }),
        (Some((_, addresses)), None) => Ok(addresses.into_iter().collect()),
        (Some(first), Some(second)) => {
            let paths = [first, second].into_iter().chain(places).take(MAX_FILES);
            Err(LineError::Ambiguous {
                file: file.to_owned(),
                line,
                files: paths.map(|(path, _)| contents.shown(&path)).collect(),
            })
        }
    }
}

/// The beginnings of statements of the line, in all line programs.
fn rows(
    contents: &Contents,
    file: &str,
    line: u64,
    budget: &mut Budget,
) -> Result<Rows, LookupError> {
    let dwarf = reader::borrow(&contents.parts.sections);
    let mut rows = Rows::default();
    for (index, unit) in contents.list.units.iter().enumerate() {
        let unit = units::open(&dwarf, unit)?;
        let unit = unit.unit_ref(&dwarf);
        let files = matching_files(unit, file, budget)?;
        if files.is_empty() {
            continue;
        }
        rows.units.push(index);
        let mut here: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let sequences = sequences(unit, budget)?;
        for row in sequences.iter().flat_map(|sequence| &sequence.rows) {
            if !row.is_statement || !files.contains_key(&row.file) {
                continue;
            }
            if row.line == line {
                here.entry(row.file).or_default().push(row.address);
            } else if row.line > line {
                rows.next = Some(rows.next.map_or(row.line, |next| next.min(row.line)));
            }
        }
        for (row_file, addresses) in here {
            let in_path = rows.found.entry(files[&row_file].clone()).or_default();
            in_path.push(InUnit {
                unit: index,
                addresses,
            });
        }
    }
    Ok(rows)
}

/// The beginnings of the copies that are inlined in place of calls in the line, by path: a line that only calls inlined functions may have no
/// row. Of several copies in one scope, the lowest.
fn inlined_calls(
    contents: &Contents,
    file: &str,
    line: u64,
    units: &[usize],
    budget: &mut Budget,
) -> Result<BTreeMap<String, BTreeSet<Gva>>, LookupError> {
    let mut places: BTreeMap<String, BTreeSet<Gva>> = BTreeMap::new();
    for index in units {
        let unit = contents.decode(*index, budget)?;
        let mut lowest: BTreeMap<(Option<usize>, &str), u64> = BTreeMap::new();
        for (number, scope) in unit.scopes.iter().enumerate() {
            let path = scope.call.filter(|call| call.line == line);
            let path = path.and_then(|call| unit.files.get(&call.file));
            let Some(path) = path.filter(|path| paths::ends_in(path, file)) else {
                continue;
            };
            budget.spend(unit.scopes.len() / 8 + 1)?;
            let chain = scopes::chain(&unit.scopes, scope.entry);
            let around = chain.iter().position(|&inner| inner == number);
            let around = around.and_then(|level| chain.get(level + 1).copied());
            let least = lowest.entry((around, path)).or_insert(scope.entry);
            *least = scope.entry.min(*least);
        }
        for ((_, path), address) in lowest {
            places
                .entry(path.to_owned())
                .or_default()
                .insert(Gva(address));
        }
    }
    Ok(places)
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

/// The lowest address of each scope that has the line.
///
/// A row without an instruction of its own, because the next row has the same address, does not count beside rows with instructions: the
/// instruction there belongs to another line, and often to the code behind an inlined copy.
fn one_for_each_scope(
    contents: &Contents,
    path: &str,
    line: u64,
    units: Vec<InUnit>,
    budget: &mut Budget,
) -> Result<BTreeSet<Gva>, LookupError> {
    let (mut lowest, mut without_code) = (BTreeSet::new(), BTreeSet::new());
    for InUnit { unit, addresses } in units {
        let unit = contents.decode(unit, budget)?;
        let mut of_scope: BTreeMap<usize, u64> = BTreeMap::new();
        for address in addresses {
            budget.spend(unit.scopes.len() / 8 + 1)?;
            match scope_of(&unit, address, path, line) {
                Some(Some(scope)) => {
                    let least = of_scope.entry(scope).or_insert(address);
                    *least = address.min(*least);
                }
                // Code of an assembler.
                Some(None) => {
                    lowest.insert(Gva(address));
                }
                None => {
                    without_code.insert(Gva(address));
                }
            }
        }
        lowest.extend(of_scope.into_values().map(Gva));
    }
    Ok(match lowest.is_empty() {
        true => without_code,
        false => lowest,
    })
}

/// The scope that has the line at `address`, if a scope is there; `None` if the instruction at `address` belongs to another line. Where an
/// inlined copy begins, the row of the call has the same address, and the call is in the scope around.
fn scope_of(unit: &UnitLines, address: u64, path: &str, line: u64) -> Option<Option<usize>> {
    let chain = scopes::chain(&unit.scopes, address);
    let places = unit.places(&chain, address);
    let level = places.iter().position(|place| {
        place.is_some_and(|(file, at)| {
            at == line && unit.files.get(&file).is_some_and(|known| known == path)
        })
    })?;
    Some(chain.get(level).copied())
}
