//! The traces as a table.

use std::fmt::Write as _;

use manifest::{Stealth, Word as _};

use crate::{KINDS, Kind, LEVELS, LOOKS, is_seen};

/// The columns: each kind at each level. A watchpoint does not depend on the level, and has the column of the default level.
pub fn columns() -> impl Iterator<Item = (Stealth, Kind)> {
    let all = LEVELS
        .into_iter()
        .flat_map(|level| KINDS.into_iter().map(move |kind| (level, kind)));
    all.filter(|(level, kind)| kind.exists_at(*level))
        .filter(|(level, kind)| *kind != Kind::Watch || *level == Stealth::Writes)
}

/// The table in Markdown: a row for each look, a column for each kind of probe at each level.
#[must_use]
pub fn table() -> String {
    let heads = columns().map(|(level, kind)| match kind {
        Kind::Watch => kind.words().to_owned(),
        _ => format!("{}: {}", level.word(), kind.words()),
    });
    let mut rows = vec![vec!["the guest looks at".to_owned(), "rights".to_owned()]];
    rows[0].extend(heads);
    rows.extend(LOOKS.into_iter().map(|look| {
        let cells = columns().map(|(level, kind)| match is_seen(look, kind, level) {
            true => "**seen**",
            false => "–",
        });
        [look.words(), look.looker().words()]
            .into_iter()
            .chain(cells)
            .map(str::to_owned)
            .collect()
    }));
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn page_has_the_table() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/invisibility.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let table = table();
        assert!(
            page.contains(&table),
            "docs/invisibility.md is to have:\n{table}"
        );
    }

    #[test]
    fn each_level_has_a_column_and_watchpoints_have_one() {
        let watched = columns().filter(|(_, kind)| *kind == Kind::Watch);
        assert_eq!(watched.count(), 1);
        for level in LEVELS {
            assert!(columns().any(|(of, _)| of == level), "{level:?}");
        }
        assert!(!columns().any(|column| column == (Stealth::Reads, Kind::Jump)));
    }
}
