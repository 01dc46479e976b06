//! Loops of calls in the test guest, between marks that read the clock.

use std::iter::repeat_n;
use std::sync::Arc;

use events::{Event, EventSink, ProbeSummary, Tier};
use manifest::ProbeConfig;
use probes::EngineAction;

use super::clock::{Clock, Mark, spans};
use super::ways::counted;
use super::{Measured, Overhead, WAYS, nanos};
use crate::contract::{Bench, Here, new_probe};
use crate::line::{Line, Timing};

/// The guest's name in the lines.
const NAME: &str = "test";
const MARK: &str = "kprobe:bm_mark";
/// The name, in the lines, of the time for taking out records.
pub(super) const TAKEN_OUT: &str = "taken-out";
/// Calls before the first measured loop: the first hits make copies and plant return sites.
const WARM_UP: u64 = 10;

/// Records for each call in the other loops: five hundred calls become fifty thousand records. The ring has room for seven thousand.
const RECORDS_FOR_A_CALL: u64 = 100;
/// Records to fill each slot of the ring once: the first use of a slot is a fault of the guest's memory, which no probe counts.
pub(super) const ONCE_AROUND: u64 = 9000;
const RECORD_ROUNDS: usize = 5;
/// The text before the scenarios.
const RUN: &str = "run=";
/// The minimum number of records for the time of a record.
const ENOUGH_RECORDS: usize = 20;

/// A sink without a listener.
#[derive(Debug)]
struct DiscardingSink;

impl EventSink for DiscardingSink {
    fn event(&self, event: Event) {
        std::hint::black_box(event);
    }
}

/// All ways, in each round again: a change of speed meanwhile affects all ways.
pub(super) fn ways(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let clock = Clock::default();
    let mut probes = Vec::new();
    let mut owners = vec![None];
    for (number, way) in WAYS.iter().enumerate() {
        let new = way.probes();
        owners.extend(repeat_n(Some(number), new.len()));
        probes.extend(new);
    }
    let here = Here::new(bench, None, 1);
    let prepared = here
        .guest(&cmdline("bench", overhead).replacen(
            RUN,
            &format!("{RUN}record1={ONCE_AROUND},"),
            1,
        ))
        .with([clock.probe(MARK)])
        .prepare_with(|_| Arc::new(DiscardingSink));
    // The engine then knows the kernel's code, and the speed of the kernel's clock, before the first hit.
    let _ = prepared.register(&probes);
    clock.takes_out(prepared.session.engine());
    let ran = prepared.run();
    ran.assert_good();
    let marks = clock.marks();
    let mut lines = Vec::new();
    for (number, way) in WAYS.iter().enumerate() {
        let rounds_ns = spans(&of(&marks, number as u64), 1);
        if rounds_ns.len() != overhead.rounds {
            return Err(format!("{} loops of {}", rounds_ns.len(), way.key));
        }
        let own = ran.summary.probes.iter().zip(&owners);
        let own = own.filter(|(_, owner)| **owner == Some(number));
        let own: Vec<_> = own.map(|(probe, _)| probe).collect();
        if let Some(wrong) = own.iter().find(|probe| is_optimised(probe) != way.jumps) {
            return Err(format!("not what {:?} says: {wrong:?}", way.title));
        }
        lines.push(Line::Timing(Timing {
            backend: overhead.backend,
            guest: NAME.to_owned(),
            way: way.key.to_owned(),
            cpus: 1,
            calls: overhead.calls,
            rounds_ns,
            // Several probes at the same site share the exits.
            hits: own.iter().map(|probe| probe.hits).max().unwrap_or(0),
            exits: own.iter().map(|probe| probe.exits).max().unwrap_or(0),
        }));
    }
    lines.extend(taken_out(overhead, &marks).map(Line::Timing));
    Ok(lines)
}

/// The time to take out as many records as a loop has calls, from the marks with enough records. A thread takes out records now and then,
/// and had taken out the others meanwhile.
fn taken_out(overhead: &Overhead<'_>, marks: &[Mark]) -> Option<Timing> {
    let enough = marks
        .iter()
        .filter(|mark| mark.taken_out.0 >= ENOUGH_RECORDS);
    let for_all = enough.map(|mark| {
        let (taken, took) = mark.taken_out;
        nanos(took).saturating_mul(overhead.calls) / taken as u64
    });
    let rounds_ns: Vec<_> = for_all.collect();
    (!rounds_ns.is_empty()).then(|| Timing {
        backend: overhead.backend,
        guest: NAME.to_owned(),
        way: TAKEN_OUT.to_owned(),
        cpus: 1,
        calls: overhead.calls,
        rounds_ns,
        hits: 0,
        exits: 0,
    })
}

/// A counted probe, hit by `cpus` processors at the same time.
pub(super) fn rate(overhead: &Overhead<'_>, bench: &Bench, cpus: u8) -> Measured {
    let probe = counted("kprobe:bm_counted");
    hit_by(overhead, bench, cpus, ("rate", "bench", probe))
}

/// A probe with recorded hits, as fast as possible: the ring becomes full.
pub(super) fn records(overhead: &Overhead<'_>, bench: &Bench, cpus: u8) -> Measured {
    let probe = new_probe("kprobe:bm_recorded");
    let many = Overhead {
        calls: overhead.calls.max(1) * RECORDS_FOR_A_CALL,
        rounds: overhead.rounds.min(RECORD_ROUNDS),
        ..*overhead
    };
    hit_by(&many, bench, cpus, ("records", "record", probe))
}

fn hit_by(
    overhead: &Overhead<'_>,
    bench: &Bench,
    cpus: u8,
    (way, scenario, probe): (&str, &str, ProbeConfig<EngineAction>),
) -> Measured {
    let clock = Clock::default();
    let here = Here::new(bench, None, cpus);
    let prepared = here
        .guest(&cmdline(&format!("{scenario}{cpus}"), overhead))
        .with([clock.probe(MARK)])
        .prepare_with(|_| Arc::new(DiscardingSink));
    let name = probe.at.to_string();
    let _ = prepared.register(&[probe]);
    clock.takes_out(prepared.session.engine());
    let ran = prepared.run();
    ran.assert_good();
    let probe = ran.probe(&name);
    let expected = u64::from(cpus) * (overhead.calls * overhead.rounds as u64 + WARM_UP);
    if probe.hits != expected {
        return Err(format!("{} hits of {expected}", probe.hits));
    }
    let marks = clock.marks();
    Ok(vec![Line::Timing(Timing {
        backend: overhead.backend,
        guest: NAME.to_owned(),
        way: way.to_owned(),
        cpus,
        calls: overhead.calls,
        rounds_ns: rounds(&marks, usize::from(cpus)),
        hits: probe.hits,
        exits: probe.exits,
    })])
}

/// Whether a jump replaces the plant.
pub(super) fn is_optimised(probe: &ProbeSummary) -> bool {
    probe.tier == Some(Tier::Optimised)
}

fn cmdline(scenario: &str, overhead: &Overhead<'_>) -> String {
    let loops = repeat_n(overhead.calls, overhead.rounds);
    let scenarios: Vec<_> = std::iter::once(WARM_UP)
        .chain(loops)
        .map(|calls| format!("{scenario}={calls}"))
        .collect();
    format!("{RUN}{}", scenarios.join(","))
}

/// The marks of loop `which`.
fn of(marks: &[Mark], which: u64) -> Vec<Mark> {
    let own = marks.iter().filter(|mark| mark.first_argument == which);
    own.copied().collect()
}

/// From the first processor's beginning to the last one's end, without the first time.
fn rounds(marks: &[Mark], cpus: usize) -> Vec<u64> {
    let rounds = marks.chunks_exact(2 * cpus).skip(1);
    let took = rounds.filter_map(|round| {
        let first = round.iter().map(|mark| mark.at).min()?;
        let last = round.iter().map(|mark| mark.at).max()?;
        Some(nanos(last.duration_since(first)))
    });
    took.collect()
}
