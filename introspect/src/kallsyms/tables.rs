//! All tables together, with a check of their plausibility.

use std::ops::Range;

use address::Gva;

use super::tokens::Tokens;
use super::{addresses, budget::Budget, names, tokens, view::View};
use crate::{KernelLayout, SymbolTable, SymbolTableBuilder};

/// Labels at the beginning of the kernel's text; every x86 kernel has at least one label.
const TEXT_LABELS: [&str; 3] = ["_stext", "_text", "startup_64"];
const KERNEL_HALF: u64 = 1 << 63;

/// The labels around the kernel's read-only data, in which the tables lie.
const RODATA: [&str; 2] = ["__start_rodata", "__end_rodata"];

/// Tables that a kernel may have, and where they lie.
struct Candidate {
    table: SymbolTable,
    at: Range<Gva>,
}

impl Candidate {
    /// Whether the symbols place the kernel's read-only data around the tables.
    fn is_in_rodata(&self) -> bool {
        let [start, end] = RODATA.map(|label| self.table.address_of(label));
        start
            .zip(end)
            .is_some_and(|(start, end)| start <= self.at.start && self.at.end <= end)
    }
}

/// The symbols of the first tables that lie in the kernel's read-only data, by the tables' own labels. Without such tables, of the largest.
///
/// The kernel gives the memory of its boot code, which lies behind its read-only data, to programs. A program that puts tables there must not
/// choose the symbols.
pub(super) fn parse(views: &[View<'_>]) -> Option<SymbolTable> {
    let mut budget = Budget::new();
    let mut largest: Option<SymbolTable> = None;
    for view in views {
        for tokens in tokens::find(view) {
            let Some(found) = candidate(view, &tokens, &mut budget) else {
                continue;
            };
            if found.is_in_rodata() {
                return Some(without_stray_text(found.table));
            }
            if largest
                .as_ref()
                .is_none_or(|largest| largest.len() <= found.table.len())
            {
                largest = Some(found.table);
            }
        }
    }
    largest.map(without_stray_text)
}

/// The tables with the tokens `tokens`.
fn candidate(view: &View<'_>, tokens: &Tokens, budget: &mut Budget) -> Option<Candidate> {
    let names = names::find(view, tokens, budget)?;
    let addresses = addresses::find(view, tokens, &names)?;
    let mut builder = SymbolTableBuilder::new();
    names.each(view, tokens, |number, kind, name| {
        if let Some(&address) = addresses.get(number) {
            builder.push(Gva(address), kind, name);
        }
    });
    let table = builder.build();
    is_kernel(&table).then(|| Candidate {
        table,
        at: view.address(names.start)..view.address(tokens.index_end),
    })
}

/// A kernel's symbols, with text symbols outside the kernel's code made data; other tables
/// unchanged.
pub(super) fn without_stray_text(table: SymbolTable) -> SymbolTable {
    match KernelLayout::from_symbols(&table).filter(|_| is_kernel(&table)) {
        Some(layout) => table.with_text_only_in(|address| layout.holds_code(address)),
        None => table,
    }
}

fn is_kernel(table: &SymbolTable) -> bool {
    let label = TEXT_LABELS.iter().find_map(|label| table.address_of(label));
    label.is_some_and(|address| address.0 >= KERNEL_HALF)
}
