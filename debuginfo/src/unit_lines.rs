//! A decoded unit: its scopes, and the rows of its line program.

use std::collections::HashMap;

use gimli::UnitRef;

use crate::budget::Budget;
use crate::error::LookupError;
use crate::names::Names;
use crate::paths;
use crate::reader::{Slice, damaged, offset_of};
use crate::scopes::{self, Scope};

/// The code from `address` up to the next row of the sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) address: u64,
    /// The index of the file in the line program.
    pub(crate) file: u64,
    /// 0 for code of no line.
    pub(crate) line: u64,
    /// Whether the row is a good place for a breakpoint: the beginning of a statement.
    pub(crate) is_statement: bool,
}

/// The rows of code in one piece.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) rows: Vec<Row>,
    end: u64,
}

/// What look-ups need of a unit.
#[derive(Debug)]
pub(crate) struct UnitLines {
    pub(crate) scopes: Vec<Scope>,
    pub(crate) sequences: Vec<Sequence>,
    /// The paths of the files that scopes and rows name.
    pub(crate) files: HashMap<u64, String>,
}

impl UnitLines {
    /// Decodes the scopes, the rows and the paths of `unit`.
    pub(crate) fn decode<'a>(
        unit: UnitRef<'_, Slice<'a>>,
        names: &mut Names<'_, 'a>,
        budget: &mut Budget,
    ) -> Result<Self, LookupError> {
        let mut scopes = Vec::new();
        scopes::visit(unit, names, budget, |scope| scopes.push(scope))?;
        let sequences = sequences(unit, budget)?;
        let mut files = HashMap::new();
        if let Some(program) = &unit.line_program {
            let calls = scopes.iter().filter_map(|scope| scope.call);
            let rows = sequences.iter().flat_map(|sequence| &sequence.rows);
            let named = calls.map(|call| call.file).chain(rows.map(|row| row.file));
            for index in named {
                if !files.contains_key(&index)
                    && let Some(path) = paths::of_file(unit, program.header(), index, budget)?
                {
                    files.insert(index, path);
                }
            }
        }
        Ok(Self {
            scopes,
            sequences,
            files,
        })
    }

    /// The row of the code at `address`.
    pub(crate) fn row_at(&self, address: u64) -> Option<Row> {
        self.sequences.iter().find_map(|sequence| {
            let first = sequence.rows.first()?.address;
            if !(first..sequence.end).contains(&address) {
                return None;
            }
            let behind = sequence.rows.partition_point(|row| row.address <= address);
            sequence.rows[..behind].last().copied()
        })
    }

    /// File index and line of each scope of `chain` at `address`, which is within the innermost: of the code itself, then of the calls.
    pub(crate) fn places(&self, chain: &[usize], address: u64) -> Vec<Option<(u64, u64)>> {
        let own = self.row_at(address).map(|row| (row.file, row.line));
        let calls = chain.iter().map(|&index| self.scopes[index].call);
        let calls = calls.map(|call| call.map(|call| (call.file, call.line)));
        std::iter::once(own)
            .chain(calls)
            .take(chain.len().max(1))
            .collect()
    }
}

/// The rows of the unit's line program, without those of code that the linker has discarded.
pub(crate) fn sequences(
    unit: UnitRef<'_, Slice<'_>>,
    budget: &mut Budget,
) -> Result<Vec<Sequence>, LookupError> {
    let Some(program) = unit.line_program.clone() else {
        return Ok(Vec::new());
    };
    let mut sequences = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    let mut steps = program.rows();
    while let Some((_, row)) = steps.next_row().map_err(damaged(offset_of(unit)))? {
        budget.spend(1)?;
        if row.end_sequence() {
            let rows = std::mem::take(&mut rows);
            let end = row.address();
            if rows
                .first()
                .is_some_and(|first| 0 < first.address && first.address < end)
            {
                sequences.push(Sequence { rows, end });
            }
            continue;
        }
        rows.push(Row {
            address: row.address(),
            file: row.file_index(),
            line: row.line().map_or(0, |line| line.get()),
            is_statement: row.is_stmt(),
        });
    }
    Ok(sequences)
}
