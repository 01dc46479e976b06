//! Loops of calls in the test guest, between marks at which somebody looks at the clock.

use std::iter::repeat_n;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use probes::{Action, Event, EventSink, Handler, HitContext, NewProbe, PreOutcome};

use super::ways::counted;
use super::{Measured, Overhead, WAYS, nanos};
use crate::contract::{Bench, Here, new_probe};
use crate::line::{Line, Timing};

/// The guest's name in the lines.
pub(super) const NAME: &str = "test";
/// Calls before the first loop that is kept: the first hits make copies and plant return sites.
const WARM_UP: u64 = 10;

/// A loop begins or ends.
#[derive(Clone, Copy, Debug)]
struct Mark {
    which: u64,
    ends: bool,
    at: Instant,
    /// Of the vCPU's thread: what else the host does is not in it.
    cpu_time: Duration,
}

/// The time that the calling thread has had, in the guest, in KVM and in the VMM.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is negative: it counts from the thread's beginning.
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// The marks, in the order in which they were hit.
#[derive(Clone, Debug, Default)]
struct Clock(Arc<Mutex<Vec<Mark>>>);

impl Clock {
    fn probe(&self) -> NewProbe {
        NewProbe {
            action: Action::Handle(Arc::new(self.clone())),
            ..new_probe("kprobe:bm_mark")
        }
    }

    fn marks(&self) -> Vec<Mark> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Handler for Clock {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let regs = hit.regs();
        marks.push(Mark {
            which: regs.rdi,
            ends: regs.rsi != 0,
            at: Instant::now(),
            cpu_time: cpu_time(),
        });
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

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
    let mut probes = vec![clock.probe()];
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
        let rounds_ns = spans(&marks, 1, number as u64);
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
        .with([clock.probe(), counted("kprobe:bm_counted")])
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

/// The processor's time that loop `which` took, without the first `skip` times.
fn spans(marks: &[Mark], skip: usize, which: u64) -> Vec<u64> {
    let own: Vec<_> = marks.iter().filter(|mark| mark.which == which).collect();
    let pairs = own
        .chunks_exact(2)
        .filter(|pair| !pair[0].ends && pair[1].ends);
    let spans = pairs.map(|pair| nanos(pair[1].cpu_time.saturating_sub(pair[0].cpu_time)));
    spans.skip(skip).collect()
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
