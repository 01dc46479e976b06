//! All tables together, with a check of their plausibility.

use address::Gva;

use super::{addresses, budget::Budget, names, tokens, view::View};
use crate::{KernelLayout, SymbolTable, SymbolTableBuilder};

/// Labels at the beginning of the kernel's text; every x86 kernel has at least one label.
const TEXT_LABELS: [&str; 3] = ["_stext", "_text", "startup_64"];
const KERNEL_HALF: u64 = 1 << 63;

/// The symbols in whichever of `views` has the most.
pub(super) fn parse(views: &[View<'_>]) -> Option<SymbolTable> {
    let mut budget = Budget::new();
    let tables = views
        .iter()
        .filter_map(|view| parse_view(view, &mut budget));
    tables.max_by_key(SymbolTable::len)
}

fn parse_view(view: &View<'_>, budget: &mut Budget) -> Option<SymbolTable> {
    let tables = tokens::find(view).into_iter().filter_map(|tokens| {
        let names = names::find(view, &tokens, budget)?;
        let addresses = addresses::find(view, &tokens, &names)?;
        let mut builder = SymbolTableBuilder::new();
        names.each(view, &tokens, |number, kind, name| {
            if let Some(&address) = addresses.get(number) {
                builder.push(Gva(address), kind, name);
            }
        });
        let table = builder.build();
        is_kernel(&table).then(|| without_stray_text(table))
    });
    tables.max_by_key(SymbolTable::len)
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
