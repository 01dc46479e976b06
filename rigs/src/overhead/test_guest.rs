//! Loops of calls in the test guest, between marks at which somebody looks at the clock.

use std::iter::repeat_n;
use std::sync::Arc;

use probes::{Event, EventSink};

use super::clock::{Clock, Mark, spans};
use super::ways::counted;
use super::{Measured, Overhead, WAYS, nanos};
use crate::contract::{Bench, Here};
use crate::line::{Line, Timing};

/// The guest's name in the lines.
const NAME: &str = "test";
const MARK: &str = "kprobe:bm_mark";
/// Calls before the first loop that is kept: the first hits make copies and plant return sites.
const WARM_UP: u64 = 10;

/// Nobody listens.
#[derive(Debug)]
struct Nobody;

impl EventSink for Nobody {
    fn event(&self, event: Event) {
        std::hint::black_box(event);
    }
}

/// Every way in turn, and all of them again in each round: what changes meanwhile changes for all of them.
pub(super) fn ways(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let clock = Clock::default();
    let mut probes = vec![clock.probe(MARK)];
    let mut owners = vec![None];
    for (number, way) in WAYS.iter().enumerate() {
        let new = way.probes();
        owners.extend(repeat_n(Some(number), new.len()));
        probes.extend(new);
    }
    let here = Here::new(bench, None, 1);
    let ran = here
        .guest(&cmdline("bench", overhead))
        .with(probes)
        .prepare_with(|_| Arc::new(Nobody))
        .run();
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
        lines.push(Line::Timing(Timing {
            backend: overhead.backend,
            guest: NAME.to_owned(),
            way: way.key.to_owned(),
            cpus: 1,
            calls: overhead.calls,
            rounds_ns,
            // Several probes at a place share its exits.
            hits: own.iter().map(|probe| probe.hits).max().unwrap_or(0),
            exits: own.iter().map(|probe| probe.exits).max().unwrap_or(0),
        }));
    }
    Ok(lines)
}

/// A counted probe, hit by one processor or by two at the same time.
pub(super) fn rate(overhead: &Overhead<'_>, bench: &Bench, cpus: u8) -> Measured {
    let clock = Clock::default();
    let here = Here::new(bench, None, cpus);
    let ran = here
        .guest(&cmdline(&format!("bench{cpus}"), overhead))
        .with([clock.probe(MARK), counted("kprobe:bm_counted")])
        .prepare_with(|_| Arc::new(Nobody))
        .run();
    ran.assert_good();
    let probe = ran.probe("kprobe:bm_counted");
    let expected = u64::from(cpus) * (overhead.calls * overhead.rounds as u64 + WARM_UP);
    if probe.hits != expected {
        return Err(format!("{} hits of {expected}", probe.hits));
    }
    let marks = clock.marks();
    Ok(vec![Line::Timing(Timing {
        backend: overhead.backend,
        guest: NAME.to_owned(),
        way: "rate".to_owned(),
        cpus,
        calls: overhead.calls,
        rounds_ns: rounds(&marks, usize::from(cpus)),
        hits: probe.hits,
        exits: probe.exits,
    })])
}

fn cmdline(scenario: &str, overhead: &Overhead<'_>) -> String {
    let loops = repeat_n(overhead.calls, overhead.rounds);
    let scenarios: Vec<_> = std::iter::once(WARM_UP)
        .chain(loops)
        .map(|calls| format!("{scenario}={calls}"))
        .collect();
    format!("run={}", scenarios.join(","))
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
