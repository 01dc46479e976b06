//! How the rates of probes have been.

use std::collections::{BTreeMap, VecDeque};

use control::api::Machine;
use events::ProbeStatus;

use crate::report::total;

/// The number of rates kept for each probe, a column of the line each.
pub(super) const KEPT: usize = 16;

/// The probes and their rates, as of the last look.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) machine: Option<Machine>,
    /// The rows in the order of the rates, the highest rate first.
    pub(super) rows: Vec<Row>,
}

/// A probe and its rates.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) probe: ProbeStatus,
    /// Hits a second, the latest at the end.
    pub(super) rates: VecDeque<u64>,
}

impl Row {
    /// Hits a second, now.
    pub(super) fn rate(&self) -> u64 {
        self.rates.back().copied().unwrap_or(0)
    }
}

impl History {
    /// Adds the present state of the machine and the probes.
    pub(super) fn add(&mut self, machine: Machine, probes: Vec<ProbeStatus>) {
        let before = self.machine.as_ref().map_or(0, |before| before.ts_ns);
        let passed_ns = machine.ts_ns.saturating_sub(before);
        let key = |probe: &ProbeStatus| (probe.id, probe.summary.probe.clone());
        let mut known: BTreeMap<_, Row> = self
            .rows
            .drain(..)
            .map(|row| (key(&row.probe), row))
            .collect();
        self.rows = probes
            .into_iter()
            .map(|probe| match known.remove(&key(&probe)) {
                Some(mut row) => {
                    let hits = probe.summary.hits.saturating_sub(row.probe.summary.hits);
                    row.rates.push_back(per_second(hits, passed_ns));
                    if row.rates.len() > KEPT {
                        row.rates.pop_front();
                    }
                    Row { probe, ..row }
                }
                None => Row {
                    probe,
                    rates: VecDeque::new(),
                },
            })
            .collect();
        self.rows
            .sort_by_key(|row| std::cmp::Reverse((row.rate(), row.probe.summary.hits)));
        self.machine = Some(machine);
    }

    /// Hits a second of all probes.
    pub(super) fn rate(&self) -> u64 {
        total(self.rows.iter().map(Row::rate))
    }
}

fn per_second(hits: u64, passed_ns: u64) -> u64 {
    let scaled = u128::from(hits) * 1_000_000_000 / u128::from(passed_ns.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use control::api::{MachineState, PauseStats};
    use serde_json::json;

    use super::*;

    pub(crate) fn machine(ts_ns: u64) -> Machine {
        Machine {
            state: MachineState::Running,
            accel: "kvm".to_owned(),
            cpus: 2,
            memory_bytes: 1 << 28,
            kernel: None,
            build_id: None,
            slide: None,
            ts_ns,
            probes: 2,
            hits: 0,
            pauses: PauseStats::default(),
            next_event: 1,
            oldest_event: 1,
            connections: 1,
            version: "0".to_owned(),
        }
    }

    pub(crate) fn probe(id: u64, hits: u64) -> ProbeStatus {
        serde_json::from_value(json!({
            "id": id, "kind": "kprobe", "enabled": true, "probe": format!("kprobe:f{id}"),
            "hits": hits, "missed": {}, "exits": hits, "state": "armed", "tier": "emulated",
        }))
        .expect("a probe")
    }

    #[test]
    fn rates_are_by_the_guest_s_clock_and_the_highest_is_first() {
        let mut history = History::default();
        history.add(machine(0), vec![probe(1, 100), probe(2, 50)]);
        assert_eq!(
            history.rows[0].probe.id.0, 1,
            "without rates, the most hits"
        );
        history.add(machine(500_000_000), vec![probe(1, 100), probe(2, 60)]);
        let rates: Vec<_> = history
            .rows
            .iter()
            .map(|row| (row.probe.id.0, row.rate()))
            .collect();
        assert_eq!(rates, [(2, 20), (1, 0)]);
        assert_eq!(history.rate(), 20);
        history.add(machine(600_000_000), vec![probe(3, 5)]);
        assert_eq!(history.rows.len(), 1, "those that are gone are forgotten");
        assert_eq!(history.rate(), 0, "what is new has no rate yet");
    }

    #[test]
    fn number_of_kept_rates_is_bounded() {
        let mut history = History::default();
        for n in 0..100 {
            history.add(machine(n * 1_000_000_000), vec![probe(1, n * n)]);
        }
        assert_eq!(history.rows[0].rates.len(), KEPT);
        assert_eq!(history.rows[0].rate(), 99 + 98);
    }
}
