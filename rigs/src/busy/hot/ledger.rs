//! Compares hits with the guest's own counters, while all vCPUs are paused.

use std::collections::BTreeSet;

use address::Gva;
use events::{ProbeId, ProbeStatus};
use probes::Kernel;
use vmm::PausedGuard;

use super::super::counting::{function, only_counts};
use super::super::guest::Live;
use super::own::Own;
use errors::chain;

/// A counter of the guest's kernel, the probes on the same calls, and both values at the start.
#[derive(Debug)]
struct Entry {
    own: Own,
    probes: Vec<ProbeId>,
    counted: u64,
    hits: u64,
    /// Since then.
    made: u64,
    /// The largest differences of the hits from `made`.
    below: u64,
    above: u64,
}

/// All entries.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: Vec<Entry>,
    pub(super) ids: BTreeSet<ProbeId>,
    pub(super) functions: BTreeSet<Gva>,
    /// A processor can be between the call of a function and the number, at the start and now.
    slack: u64,
    pub(super) looks: usize,
}

impl Ledger {
    /// Registers probes on the functions of `numbers`. The probes are never disabled.
    pub(super) fn open(
        live: &Live<'_>,
        kernel: &Kernel,
        numbers: Vec<Own>,
        cpus: u8,
    ) -> Result<Self, String> {
        let paused = live.control.pause_all();
        let mut ledger = Self {
            entries: Vec::new(),
            ids: BTreeSet::new(),
            functions: BTreeSet::new(),
            slack: u64::from(cpus),
            looks: 0,
        };
        for own in numbers {
            let mut new = Vec::new();
            for name in &own.functions {
                ledger.functions.insert(function(kernel, name)?.address);
                new.push(only_counts(&format!("kprobe:{name}"))?);
            }
            let probes = live.engine.register(&paused, &new).map_err(chain)?;
            ledger.ids.extend(&probes);
            ledger.entries.push(Entry {
                counted: own.read(live.engine)?,
                own,
                probes,
                hits: 0,
                made: 0,
                below: 0,
                above: 0,
            });
        }
        Ok(ledger)
    }

    /// Compares each counter with the hits of the entry's probes. The two may differ by one for each processor: a processor may stand
    /// between the hit and the count.
    pub(super) fn check(
        &mut self,
        live: &Live<'_>,
        _paused: &PausedGuard<'_>,
    ) -> Result<(), String> {
        let statuses = live
            .engine
            .inventory()
            .statuses_among(&self.ids, usize::MAX);
        self.looks += 1;
        for entry in &mut self.entries {
            let is_its = |status: &&ProbeStatus| entry.probes.contains(&status.id);
            let hits: u64 = statuses
                .iter()
                .filter(is_its)
                .map(|it| it.summary.hits)
                .sum();
            let hits = hits - entry.hits;
            entry.made = entry.own.read(live.engine)? - entry.counted;
            entry.below = entry.below.max(entry.made.saturating_sub(hits));
            entry.above = entry.above.max(hits.saturating_sub(entry.made));
            if !is_near(entry.made, hits, self.slack) {
                let probes: Vec<_> = statuses.iter().filter(is_its).collect();
                return Err(format!(
                    "look {}: the guest counts {} {}: {probes:?}",
                    self.looks, entry.made, entry.own.what
                ));
            }
        }
        Ok(())
    }

    /// The specifications of the probes.
    pub(super) fn specs(&self) -> impl Iterator<Item = String> {
        let functions = self.entries.iter().flat_map(|entry| &entry.own.functions);
        functions.map(|name| format!("kprobe:{name}"))
    }

    /// The counters that have changed, with the functions and the largest differences.
    pub(super) fn changes_in_words(&self) -> String {
        let counted = self.entries.iter().filter(|entry| entry.made > 0);
        let told: Vec<String> = counted
            .map(|entry| {
                format!(
                    "{} {} = {} (-{} +{})",
                    entry.made,
                    entry.own.what,
                    entry.own.functions.join(" + "),
                    entry.below,
                    entry.above
                )
            })
            .collect();
        told.join(", ")
    }
}

/// Whether `hits` and `made` calls differ by at most `slack`.
fn is_near(made: u64, hits: u64, slack: u64) -> bool {
    made.abs_diff(hits) <= slack
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_lost_or_doubled_hit_is_detected() {
        let with = |hits| is_near(1_000_000, hits, 2);
        assert!(with(999_998) && with(1_000_002));
        assert!(!with(999_997) && !with(1_000_003));
    }
}
