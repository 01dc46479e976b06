//! A probe in the workload's own program comes and goes, while a probe in the kernel counts the same calls.

use std::thread::sleep;
use std::time::{Duration, Instant};

use events::{ProbeState, ProbeSummary};

use super::counting::{Counted, is_accounted, lost, only_counts};
use super::guest::{Guest, Live};
use super::text::Text;
use errors::chain;

/// How often a probe comes and goes.
#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    /// The number of times.
    pub count: u32,
}

const PROCESSES: u64 = 2;
/// Each of the processes opens files all the time.
const WORKLOAD: &str =
    "procs=2 opens=20 reads=20 getpids=20 nappers=2 naps=2 nap=1 repeat=1000000 listen=1";
const AT_WORK: &str = "workload: round 2";
/// Each call of `openat` is made in `workload_open`.
const IN_KERNEL: &str = "kprobe:do_sys_openat2";
const IN_PROGRAM: [&str; 2] = [
    "uprobe:/init:workload_open",
    "uretprobe:/init:workload_open",
];
/// The time that a probe stays, and the time without a probe.
const STAY: Duration = Duration::from_millis(20);
/// The guest boots before, and ends after.
const MARGIN: Duration = Duration::from_secs(600);
/// A cycle takes a tenth of it where measured.
const CYCLE: Duration = Duration::from_secs(1);

/// The most memory that the second half of the cycles may add. A kilobyte of each of 5000 would be more. The first half is not judged: the
/// guest uses more and more of its memory, until its caches are full.
const MORE_KIB: u64 = 4 << 10;
/// The fewest cycles whose memory is judged.
const JUDGED: u32 = 5000;

/// What the cycles have shown.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The calls that the probes in the program and the probe in the kernel have counted in the same times.
    in_program: u64,
    in_kernel: u64,
    /// The cycles with hits.
    with_hits: u32,
    /// The memory of this process, the guest's included, after half of the cycles, and at the end.
    resident_kib: (u64, u64),
}

pub(super) fn run(guest: &Guest<'_>, cycles: Cycles) -> Result<String, String> {
    let permanent = [only_counts(IN_KERNEL)?];
    let limit = MARGIN + CYCLE.saturating_mul(cycles.count);
    let (ran, seen) = guest.run(WORKLOAD, &permanent, limit, |live| {
        live.await_text(AT_WORK, MARGIN)?;
        drive(live, guest, cycles)
    })?;
    if let Some(wrong) = lost(&ran.summary.probes[0], Counted::Openat.of(&ran)) {
        return Err(wrong);
    }
    if seen.with_hits == 0 {
        return Err("no probe in the program has had a hit".to_owned());
    }
    Ok(format!(
        "{} cycles, {} of them with hits: {} calls counted in the program, {} in the kernel meanwhile; {} KiB of memory, then {}; {} complaints about time",
        cycles.count,
        seen.with_hits,
        seen.in_program,
        seen.in_kernel,
        seen.resident_kib.0,
        seen.resident_kib.1,
        ran.slow,
    ))
}

/// The memory of this process.
fn resident_kib() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(chain)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "/proc/self/status has no VmRSS".to_owned())
}

fn drive(live: &Live<'_>, guest: &Guest<'_>, cycles: Cycles) -> Result<Seen, String> {
    let kernel = guest.kernel()?;
    let text = Text::of(&kernel)?;
    let before = text.own(live, &live.control.pause_all())?;
    let mut seen = Seen::default();
    let began = Instant::now();
    for (number, spec) in (0..cycles.count).zip(IN_PROGRAM.iter().cycle()) {
        if number == cycles.count / 2 {
            seen.resident_kib.0 = resident_kib()?;
        }
        if live.has_ended() {
            return Err(format!("the guest has ended after {:?}", began.elapsed()));
        }
        let (hits, calls) =
            cycle(live, spec).map_err(|error| format!("cycle {number}, {spec}: {error}"))?;
        seen.in_program += hits;
        seen.in_kernel += calls;
        seen.with_hits += u32::from(hits > 0);
        sleep(STAY);
    }
    // In front of the second copy of the kernel's text, which has some megabytes.
    let resident = resident_kib()?;
    seen.resident_kib.1 = resident;
    let paused = live.control.pause_all();
    let after = text.own(live, &paused)?;
    drop(paused);
    text.patched(&before, &after)?;
    if cycles.count >= JUDGED && resident > seen.resident_kib.0 + MORE_KIB {
        return Err(format!(
            "{} KiB of memory, then {resident}",
            seen.resident_kib.0
        ));
    }
    live.type_line()?;
    Ok(seen)
}

/// Adds the probe, and removes it. Returns its hits, and those of the probe in the kernel meanwhile.
fn cycle(live: &Live<'_>, spec: &str) -> Result<(u64, u64), String> {
    let in_kernel = || live.engine.inventory().summaries()[0].hits;
    let paused = live.control.pause_all();
    let ids = live
        .engine
        .register(&paused, &[only_counts(spec)?])
        .map_err(chain)?;
    let before = in_kernel();
    drop(paused);
    sleep(STAY);
    let paused = live.control.pause_all();
    let calls = in_kernel() - before;
    let summaries = live.engine.inventory().summaries();
    let [_, probe] = &summaries[..] else {
        return Err(format!("{} probes instead of two", summaries.len()));
    };
    judge(probe, calls)?;
    live.engine.unregister(&paused, &ids).map_err(chain)?;
    match live.engine.inventory().summaries().len() {
        1 => Ok((probe.hits, calls)),
        probes => Err(format!("{probes} probes are left instead of one")),
    }
}

/// Each call in the time of the probe is a hit; a process may have been between the two probes at each end of this time.
fn judge(probe: &ProbeSummary, calls: u64) -> Result<(), String> {
    let is_counted = probe.hits.abs_diff(calls) <= PROCESSES;
    match probe.state == ProbeState::Armed && is_counted && is_accounted(probe) {
        true => Ok(()),
        false => Err(format!("{calls} calls in the kernel: {probe:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy::counting::tests::counted;

    #[test]
    fn call_without_a_hit_is_reported_unless_it_may_be_between_the_probes() {
        for (hits, calls, is_good) in [
            (10, 12, true),
            (12, 10, true),
            (10, 13, false),
            (13, 10, false),
        ] {
            let judged = judge(&counted(hits, None), calls);
            assert_eq!(judged.is_ok(), is_good, "{hits} {calls}");
        }
        let pending = ProbeSummary {
            state: ProbeState::Pending,
            ..counted(10, None)
        };
        assert!(judge(&pending, 10).is_err());
    }
}
