//! Counts the exits at pages with watched data, and reports the pages with many.

use address::Gva;

use crate::engine::watch::Watches;
use crate::engine::watch::hot_pages::HotPage;
use crate::engine::watch::memory::{Origin, Seen};

/// The most instructions that a note about a page names.
const MAX_NAMED: usize = 3;

impl Watches {
    /// Counts an exit of the instruction at `by`, for each watchpoint on the accessed pages whose bytes the instruction has not accessed. A note
    /// reports pages with many exits.
    pub(super) fn count_exits(&self, seen: &Seen, by: Gva) {
        let table = self.table.load();
        for probe in seen.beside(&table) {
            probe.counters.count_exit();
        }
        for page in seen.pages() {
            let hot = self.hot_pages.count(page, by, self.reporter.now_ns());
            let mut on_page = table.on_page(page);
            let watch = on_page.find(|watch| !watch.access.is_in_register());
            if let (Some(hot), Some(watch)) = (hot, watch) {
                let text = self.describe(&hot);
                self.reporter.note(Some(&watch.probe), text);
            }
        }
    }

    fn describe(&self, hot: &HotPage) -> String {
        let frequent = hot.by.iter().take(MAX_NAMED);
        let frequent = frequent.filter(|(_, exits)| *exits >= hot.exits / 10);
        let frequent = frequent.map(|(at, exits)| {
            let symbol = self.writer(Origin::Instruction(*at)).symbol;
            format!("{symbol} (at least {exits})")
        });
        let frequent: Vec<String> = frequent.collect();
        let by = match frequent.is_empty() {
            true => "many instructions".to_owned(),
            false => frequent.join(", "),
        };
        let remedy = match self.running.abilities.debug_writes {
            true => "; with `hw`, up to 8 bytes exit at their own writes only",
            false => "",
        };
        format!(
            "{} exits in {} ms at the page of this data slow the guest, by {by}{remedy}",
            hot.exits,
            hot.in_ns / 1_000_000,
        )
    }
}
