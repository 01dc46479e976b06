//! A decoded unit: its scopes, and the rows of its line program.

use gimli::{Attribute, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
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
struct Sequence {
    start: u64,
    end: u64,
    rows: Vec<Row>,
}

/// The functions, inlined copies and rows of a unit.
#[derive(Debug)]
pub(crate) struct UnitLines {
    pub(crate) scopes: Vec<Scope>,
    /// In ascending order.
    sequences: Vec<Sequence>,
}

impl UnitLines {
    /// Decodes the scopes and the rows of `unit`. `visit` gets the attributes of each scope's entry, in the order of the scopes.
    pub(crate) fn decode<'a>(
        unit: UnitRef<'_, Slice<'a>>,
        budget: &mut Budget,
        mut visit: impl FnMut(&[Attribute<Slice<'a>>], &mut Budget) -> Result<(), LookupError>,
    ) -> Result<Self, LookupError> {
        let mut scopes = Vec::new();
        scopes::visit(unit, budget, |scope, attributes, budget| {
            scopes.push(scope);
            visit(attributes, budget)
        })?;
        let mut sequences = sequences(unit, budget)?;
        sequences.sort_by_key(|sequence| sequence.start);
        Ok(Self { scopes, sequences })
    }

    /// All rows, without those of code that the linker has discarded.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sequences.iter().flat_map(|sequence| &sequence.rows)
    }

    /// The row of the code at `address`: of several rows with the address of the instruction, the last.
    fn row_at(&self, address: u64) -> Option<Row> {
        let behind = self
            .sequences
            .partition_point(|sequence| sequence.start <= address);
        let sequence = self.sequences[..behind].last()?;
        if address >= sequence.end {
            return None;
        }
        let behind = sequence.rows.partition_point(|row| row.address <= address);
        sequence.rows[..behind].last().copied()
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

fn sequences(
    unit: UnitRef<'_, Slice<'_>>,
    budget: &mut Budget,
) -> Result<Vec<Sequence>, LookupError> {
    let Some(program) = unit.line_program.clone() else {
        return Ok(Vec::new());
    };
    // Several units may have the same program, and not each instruction makes a row.
    budget.spend(program.header().raw_program_buf().len())?;
    let mut sequences = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    let mut steps = program.rows();
    while let Some((_, row)) = steps.next_row().map_err(damaged(offset_of(unit)))? {
        if row.end_sequence() {
            let rows = std::mem::take(&mut rows);
            let end = row.address();
            if let Some(start) = rows.first().map(|first| first.address)
                && 0 < start
                && start < end
            {
                sequences.push(Sequence { start, end, rows });
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
