//! Pages with watched data that the guest accesses often: each access exits, and slows the guest. A note names the instructions.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};

/// The time in which exits are counted.
const WINDOW_NS: u64 = 1_000_000_000;
/// The number of exits in that time that is reported, and again each ten times as many.
const HOT: u32 = 1000;
/// The most instructions that are counted on a page at once.
const INSTRUCTIONS: usize = 8;

/// The exits of the protected pages, each in its present window.
#[derive(Debug, Default)]
pub(crate) struct HotPages(Mutex<BTreeMap<Gpa, Window>>);

#[derive(Debug)]
struct Window {
    since_ns: u64,
    exits: u32,
    /// The number of exits of the next report.
    threshold: u32,
    /// The instructions with the most exits, each with a count that is too low by as many exits as other instructions have displaced.
    by: Vec<(Gva, u32)>,
}

/// A page with many exits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HotPage {
    pub(crate) exits: u32,
    pub(crate) in_ns: u64,
    /// The instructions with the most exits, each with a lower bound of their number; the first has the most.
    pub(crate) by: Vec<(Gva, u32)>,
}

impl HotPages {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Gpa, Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the other pages.
    pub(crate) fn retain(&self, stays: impl Fn(Gpa) -> bool) {
        self.lock().retain(|page, _| stays(*page));
    }

    /// Counts an exit of the instruction `by` at the page. Returns the page if it has become hot.
    pub(crate) fn count(&self, page: Gpa, by: Gva, now_ns: u64) -> Option<HotPage> {
        let mut pages = self.lock();
        let window = pages.entry(page).or_insert_with(|| Window {
            since_ns: now_ns,
            exits: 0,
            threshold: HOT,
            by: Vec::new(),
        });
        if now_ns.saturating_sub(window.since_ns) > WINDOW_NS {
            window.since_ns = now_ns;
            window.exits = 0;
            window.by.clear();
        }
        window.exits = window.exits.saturating_add(1);
        window.count_instruction(by);
        if window.exits < window.threshold {
            return None;
        }
        window.threshold = window.threshold.saturating_mul(10);
        let mut by = window.by.clone();
        by.sort_by_key(|(_, exits)| std::cmp::Reverse(*exits));
        Some(HotPage {
            exits: window.exits,
            in_ns: now_ns.saturating_sub(window.since_ns),
            by,
        })
    }
}

impl Window {
    /// Counts the instruction among the most frequent ones, by the rule of Misra and Gries.
    fn count_instruction(&mut self, by: Gva) {
        if let Some((_, exits)) = self.by.iter_mut().find(|(at, _)| *at == by) {
            *exits += 1;
        } else if self.by.len() < INSTRUCTIONS {
            self.by.push((by, 1));
        } else {
            self.by.iter_mut().for_each(|(_, exits)| *exits -= 1);
            self.by.retain(|(_, exits)| *exits > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Gpa = Gpa(0x1000);

    #[test]
    fn page_with_many_exits_in_a_second_is_hot_once_for_each_power_of_ten() {
        let pages = HotPages::default();
        let mut hot = (0..20_000).filter_map(|exit| {
            let by = if exit % 4 == 0 { 0x10 } else { 0x20 };
            pages.count(PAGE, Gva(by), exit * 10_000)
        });
        let expected = |exits: u32| HotPage {
            exits,
            in_ns: u64::from(exits - 1) * 10_000,
            by: vec![(Gva(0x20), exits / 4 * 3), (Gva(0x10), exits / 4)],
        };
        assert_eq!(hot.next(), Some(expected(1000)));
        assert_eq!(hot.next(), Some(expected(10_000)));
        assert_eq!(hot.next(), None);
    }

    #[test]
    fn forgotten_page_is_reported_anew() {
        let pages = HotPages::default();
        let hot = |exits: u64| {
            (0..exits)
                .filter_map(|_| pages.count(PAGE, Gva(1), 0))
                .count()
        };
        assert_eq!(hot(1500), 1);
        pages.retain(|page| page == PAGE);
        assert_eq!(hot(1500), 0);
        pages.retain(|page| page != PAGE);
        assert_eq!(hot(1500), 1);
    }

    #[test]
    fn few_exits_in_each_second_are_not_hot() {
        let pages = HotPages::default();
        let mut hot = (0..20_000).filter_map(|exit| pages.count(PAGE, Gva(1), exit * 2_000_000));
        assert_eq!(hot.next(), None);
        // Other pages have counts of their own.
        let mut others = (0..20_000).filter_map(|page| pages.count(Gpa(page << 12), Gva(1), 0));
        assert_eq!(others.next(), None);
    }

    #[test]
    fn most_frequent_instruction_is_known_among_many() {
        let pages = HotPages::default();
        let mut hot = (0..2000).filter_map(|exit| {
            let by = if exit % 2 == 0 { 0x10 } else { 0x1000 + exit };
            pages.count(PAGE, Gva(by), exit)
        });
        let page = hot.next().expect("hot");
        assert_eq!(page.by.first().map(|(at, _)| *at), Some(Gva(0x10)));
        assert!(
            page.by
                .iter()
                .all(|(at, exits)| at.0 == 0x10 || *exits <= 2)
        );
    }
}
