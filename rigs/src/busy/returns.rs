//! Return probes on functions in which many tasks sleep: the probes count as many entries as the guest, and account for each entry.

use std::time::Duration;

use events::ProbeId;
use events::ProbeSummary;
use manifest::{Action, ProbeConfig, ProbeSpec};

use super::guest::{Guest, Live, Ran};
use errors::chain;

const NAPPERS: u64 = 24;
const NAPS: u64 = 20;
const VICTIMS: u64 = 12;
const LIMIT: Duration = Duration::from_secs(240);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
const AT_WORK: &str = "workload: start";

/// Tasks sleep in the function until the time is over or they are killed; then the function returns.
const SLEEPS: &str = "kretprobe:hrtimer_nanosleep";
/// The caller of `hrtimer_nanosleep`.
const CALLS_SLEEP: &str = "kretprobe:__x64_sys_nanosleep";
/// Neither function returns to a dying task.
const DIES: &str = "kretprobe:do_group_exit";
const IS_KILLED: &str = "kretprobe:get_signal";
/// The last call of all is still in flight when the guest is gone.
const ENDS: &str = "kretprobe:__x64_sys_reboot";
/// Every task that does not run is in `__schedule`. A task that has died has entered once more than returned.
const SCHEDULES: &str = "kretprobe:__schedule";
const TASKS: u64 = 4096;

/// The change of a probe while the victims sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Switched {
    Never,
    OffAndOn,
    Off,
    /// The probe is registered disabled, and is then enabled.
    On,
}

struct Followed {
    spec: &'static str,
    maxactive: Option<u64>,
    switched: Switched,
}

const fn stays(spec: &'static str, maxactive: Option<u64>) -> Followed {
    Followed {
        spec,
        maxactive,
        switched: Switched::Never,
    }
}

const fn switched(switched: Switched) -> Followed {
    Followed {
        spec: SLEEPS,
        maxactive: None,
        switched,
    }
}

const FOLLOWED: [Followed; 12] = [
    stays(CALLS_SLEEP, Some(1)),
    stays(CALLS_SLEEP, None),
    stays(SLEEPS, Some(1)),
    stays(SLEEPS, Some(2)),
    stays(SLEEPS, Some(3)),
    switched(Switched::OffAndOn),
    switched(Switched::Off),
    switched(Switched::On),
    stays(DIES, None),
    stays(IS_KILLED, None),
    stays(ENDS, None),
    stays(SCHEDULES, Some(TASKS)),
];
/// The index of the probe whose returns are events, too.
const EMITTED: usize = 1;

fn new_probe((index, followed): (usize, &Followed)) -> Result<ProbeConfig, String> {
    let spec: ProbeSpec = followed.spec.parse().map_err(chain)?;
    Ok(ProbeConfig {
        action: if index == EMITTED {
            Action::Trace
        } else {
            Action::Count
        },
        maxactive: followed
            .maxactive
            .and_then(|maxactive| usize::try_from(maxactive).ok()),
        enabled: followed.switched != Switched::On,
        ..ProbeConfig::from(spec)
    })
}

pub(super) fn run(guest: &Guest<'_>) -> Result<String, String> {
    let probes = FOLLOWED
        .iter()
        .enumerate()
        .map(new_probe)
        .collect::<Result<Vec<_>, _>>()?;
    let workload = format!("nappers={NAPPERS} naps={NAPS} nap=1 victims={VICTIMS} listen=1");
    let (ran, (looks, waiting)) = guest.run(&workload, &probes, LIMIT, drive)?;
    let wrong = at_the_end(&ran, waiting);
    if wrong.is_empty() {
        let missed: u64 = ran.summary.probes.iter().map(missed).sum();
        Ok(format!(
            "{} naps, {} processes, {looks} looks on the way, {missed} calls missed by {} probes",
            ran.counts.nap,
            ran.counts.children,
            FOLLOWED.len()
        ))
    } else {
        Err(wrong.join("; "))
    }
}

fn missed(probe: &ProbeSummary) -> u64 {
    probe.missed.values().sum()
}

fn missed_by(probe: &ProbeSummary, reason: &str) -> u64 {
    probe.missed.get(reason).copied().unwrap_or(0)
}

/// A message if a probe's calls do not add up while the vCPUs are paused.
fn unbalanced(followed: &Followed, probe: &ProbeSummary) -> Option<String> {
    let (returns, in_flight) = (probe.returns?, probe.in_flight?);
    let within = in_flight <= followed.maxactive.unwrap_or(u64::MAX);
    (probe.hits != returns + in_flight + missed(probe) || !within).then(|| format!("{probe:?}"))
}

/// The summaries, once each probe's calls add up in them.
fn look(live: &Live<'_>) -> Result<Vec<ProbeSummary>, String> {
    let paused = live.control.pause_all();
    let summaries = live.engine.inventory().summaries();
    drop(paused);
    let wrong = FOLLOWED
        .iter()
        .zip(&summaries)
        .find_map(|(followed, probe)| unbalanced(followed, probe));
    match wrong {
        Some(wrong) => Err(format!("while it runs: {wrong}")),
        None => Ok(summaries),
    }
}

/// Checks the probes while tasks sleep and wake, and switches probes while the victims sleep. Returns the number of checks, and the
/// number of tasks that did not run then.
fn drive(live: &Live<'_>) -> Result<(usize, u64), String> {
    let asleep = format!("workload: asleep={VICTIMS}");
    let mut looks = 0;
    live.await_text(AT_WORK, LIMIT)?;
    while !live.has_printed(&asleep) && !live.has_ended() {
        look(live)?;
        looks += 1;
        std::thread::sleep(BETWEEN_LOOKS);
    }
    let mut waiting = 0;
    for (followed, probe) in FOLLOWED.iter().zip(look(live)?) {
        half_way(followed, &probe)?;
        if followed.spec == SCHEDULES {
            waiting = probe.in_flight.unwrap_or(0);
        }
    }
    switch(live)?;
    for (followed, probe) in FOLLOWED.iter().zip(look(live)?) {
        let lost = matches!(followed.switched, Switched::OffAndOn | Switched::Off);
        if lost && (probe.in_flight, missed_by(&probe, "disarmed")) != (Some(0), VICTIMS) {
            return Err(format!("after it was disabled: {probe:?}"));
        }
    }
    live.type_line()?;
    Ok((looks, waiting))
}

/// All naps of the first round have ended, and all victims sleep.
fn half_way(followed: &Followed, probe: &ProbeSummary) -> Result<(), String> {
    let sleeps = [SLEEPS, CALLS_SLEEP].contains(&followed.spec);
    let off = followed.switched == Switched::On;
    let entered = if sleeps && !off {
        NAPPERS * NAPS + VICTIMS
    } else {
        0
    };
    let asleep = if sleeps && !off { VICTIMS } else { 0 };
    let in_flight = asleep.min(followed.maxactive.unwrap_or(u64::MAX));
    let is_right = match followed.spec {
        // Each victim is in flight, and no task that has died.
        SCHEDULES => probe.in_flight > Some(VICTIMS) && missed_by(probe, "maxactive") == 0,
        DIES => probe.in_flight == Some(0) && probe.hits == missed_by(probe, "abandoned"),
        _ => probe.hits == entered && probe.in_flight == Some(in_flight),
    };
    if is_right {
        Ok(())
    } else {
        Err(format!(
            "half-way: {entered} entries and {in_flight} in flight expected: {probe:?}"
        ))
    }
}

fn switch(live: &Live<'_>) -> Result<(), String> {
    let paused = live.control.pause_all();
    let set = |id: ProbeId, enabled| {
        live.engine
            .set_enabled(&paused, id, enabled)
            .map_err(chain)
            .map(drop)
    };
    for (followed, id) in FOLLOWED.iter().zip(live.engine.inventory().ids()) {
        match followed.switched {
            Switched::Never => (),
            Switched::OffAndOn => {
                set(id, false)?;
                set(id, true)?;
            }
            Switched::Off => set(id, false)?,
            Switched::On => set(id, true)?,
        }
    }
    Ok(())
}

/// The expected entries, returns, calls in flight, and calls missed as `maxactive`, `abandoned` and `disarmed`. `None` accepts any number
/// except zero; `unbalanced` checks the sum.
fn expected(followed: &Followed, ran: &Ran) -> [Option<u64>; 6] {
    let round = NAPPERS * NAPS;
    let deaths = ran.counts.children;
    match (followed.spec, followed.switched) {
        (SLEEPS | CALLS_SLEEP, Switched::Never) if followed.maxactive.is_some() => {
            [Some(ran.counts.nap), None, Some(0), None, Some(0), Some(0)]
        }
        (SLEEPS | CALLS_SLEEP, switched) => {
            let (entered, disarmed) = match switched {
                Switched::Never => (ran.counts.nap, 0),
                Switched::OffAndOn => (ran.counts.nap, VICTIMS),
                Switched::Off => (round + VICTIMS, VICTIMS),
                Switched::On => (round, 0),
            };
            [entered, entered - disarmed, 0, 0, 0, disarmed].map(Some)
        }
        (DIES, _) => [deaths, 0, 0, 0, deaths, 0].map(Some),
        (IS_KILLED, _) => [VICTIMS, 0, 0, 0, VICTIMS, 0].map(Some),
        _ => [1, 0, 1, 0, 0, 0].map(Some),
    }
}

fn at_the_end(ran: &Ran, waiting: u64) -> Vec<String> {
    let mut wrong = ran.notes.clone();
    if ran.counts.nap != 2 * NAPPERS * NAPS + VICTIMS {
        wrong.push(format!("the guest counts otherwise: {:?}", ran.counts));
    }
    let told: u64 = ran.returns.values().sum();
    for (index, (followed, probe)) in FOLLOWED.iter().zip(&ran.summary.probes).enumerate() {
        wrong.extend(unbalanced(followed, probe));
        if followed.spec == SCHEDULES {
            // The victims are gone. A few of the kernel's own tasks come and go.
            let is_left = probe.in_flight.unwrap_or(0) + VICTIMS / 2;
            if is_left > waiting || missed_by(probe, "abandoned") < ran.counts.children {
                wrong.push(format!("fewer than {waiting} tasks are left: {probe:?}"));
            }
            continue;
        }
        let counted = [
            Some(probe.hits),
            probe.returns,
            probe.in_flight,
            Some(missed_by(probe, "maxactive")),
            Some(missed_by(probe, "abandoned")),
            Some(missed_by(probe, "disarmed")),
        ];
        let expected = expected(followed, ran);
        let differs = counted
            .into_iter()
            .zip(expected)
            .any(|(counted, expected)| match expected {
                Some(_) => counted != expected,
                None => counted == Some(0),
            });
        if differs || missed_by(probe, "return-site") > 0 {
            wrong.push(format!("{expected:?} expected: {probe:?}"));
        }
        if index == EMITTED && Some(told) != probe.returns {
            wrong.push(format!("{told} returns told: {probe:?}"));
        }
    }
    wrong
}
