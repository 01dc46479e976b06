//! Compares a boot with probes with the same boot without probes.

use std::collections::BTreeMap;
use std::time::Duration;

use events::{ProbeState, ProbeSummary};
use guest_images::workload::Counts;
use manifest::GuestEnd;

use super::boot::{Ended, Limits, Ran};
use super::console::{Reports, last_words};
use super::function::{Functions, reason};
use super::mode::{Configuration, HitAction, Lifetime, Site};
use super::outcome::{FunctionId, MissedBy, Outcome, Tally};
use crate::busy::counting::is_accounted;

/// The number of calls of a function by the workload.
type Calls = fn(&Counts) -> u64;

/// Functions whose calls the workload counts.
const COUNTED: [(&str, Calls); 7] = [
    ("do_sys_openat2", |counts| counts.openat),
    ("__x64_sys_openat", |counts| counts.openat),
    ("ksys_read", |counts| counts.read),
    ("__x64_sys_read", |counts| counts.read),
    ("__x64_sys_getpid", |counts| counts.getpid),
    ("hrtimer_nanosleep", |counts| counts.nap),
    ("do_group_exit", |counts| counts.children),
];
/// The number of times that a probe's plant withdrew without a debug register to replace the plant: the number of missed hits is
/// unknown. With a probe at each function the four registers are taken.
const UNWATCHED: &str = "unwatched";
/// The minimum number of hits of a probe that a guest does nothing but hit.
const LIVELOCK_HITS: u64 = 10_000;
/// The minimum share of the probe's hits in all hits, as a divisor.
const LIVELOCK_PART: u64 = 2;
/// A boot may take `TIMES` the time of the boot without probes, and `BESIDES` more.
const TIMES: u32 = 10;
const BESIDES: Duration = Duration::from_secs(60);
const SILENT_TIMES: u32 = 6;
/// The engine handles thousands of probes in one pause, for seconds under emulation.
const SILENT_BESIDES: Duration = Duration::from_secs(60);

/// The boot without probes.
#[derive(Clone, Debug)]
pub(super) struct Baseline {
    pub(super) reports: Reports,
    pub(super) limits: Limits,
}

impl Baseline {
    /// The baseline for other boots, from the boot without probes.
    pub(super) fn of(ran: &Ran) -> Result<Self, String> {
        ran.lifecycle.clone()?;
        if let Ended::Broken(why) = &ran.ended {
            return Err(why.clone());
        }
        let ends_well = is_good_end(&ran.ended) && good_counts(&ran.console).is_some();
        if !ends_well {
            return Err(format!(
                "the guest does not come to a good end without probes: {}; its last words: {}",
                describe(&ran.ended),
                last_words(&ran.console)
            ));
        }
        Ok(Self {
            reports: Reports::of(&ran.console),
            limits: Limits {
                total: BESIDES + ran.took * TIMES,
                silence: SILENT_BESIDES + ran.longest_silence * SILENT_TIMES,
            },
        })
    }
}

/// The boot to judge.
#[derive(Debug)]
pub(super) struct Judged<'a> {
    pub(super) functions: &'a Functions,
    pub(super) configuration: Configuration,
    /// The functions with probes, in the order of the probes.
    pub(super) set: &'a [FunctionId],
    pub(super) ran: &'a Ran,
}

impl Baseline {
    /// The verdict on a boot.
    pub(super) fn judge(&self, judged: &Judged<'_>) -> Outcome {
        let ran = judged.ran;
        let hangs = match ran.ended {
            Ended::OverLimit(_) => Some(false),
            // With many probes, exits may take all the time, so that no line comes.
            Ended::SilentAtLimit(_) => Some(true),
            Ended::Guest { .. } | Ended::Silent(_) | Ended::Broken(_) => None,
        };
        if let Some(hangs) = hangs {
            if let Some(report) = Reports::of(&ran.console).beyond(&self.reports) {
                return Outcome::Harmed {
                    reason: format!("the guest reports, and comes to no end: {report}"),
                    suspects: suspects(judged),
                };
            }
            return Outcome::Slow {
                reason: format!(
                    "{} after {} s{}; last words: {}",
                    describe(&ran.ended),
                    ran.in_guest.as_secs(),
                    busiest(judged).map_or(String::new(), |(_, text)| format!("; {text}")),
                    last_words(&ran.console)
                ),
                hangs,
            };
        }
        if let Some(reason) = self.harm(judged) {
            return Outcome::Harmed {
                reason,
                suspects: suspects(judged),
            };
        }
        if let Some(line) = Reports::of(&ran.console).little_time {
            return Outcome::Slow {
                reason: format!("the guest complains of too little time: {line}"),
                hangs: false,
            };
        }
        Outcome::Well(tally(judged))
    }

    fn harm(&self, judged: &Judged<'_>) -> Option<String> {
        let ran = judged.ran;
        let words = || last_words(&ran.console);
        let is_stopped =
            matches!(&ran.ended, Ended::Guest { end, .. } if *end == GuestEnd::Stopped);
        if let Err(error) = &ran.lifecycle
            && is_stopped
        {
            // The thread that could not change a probe has stopped the guest.
            return Some(error.clone());
        }
        if !is_good_end(&ran.ended) {
            let hits = busiest(judged).map_or(String::new(), |(_, text)| format!("; {text}"));
            let how = describe(&ran.ended);
            return Some(format!(
                "{how} after {:.1} s{hits}; last words: {}",
                ran.in_guest.as_secs_f64(),
                words()
            ));
        }
        if let Err(error) = &ran.lifecycle {
            return Some(error.clone());
        }
        if let Some(report) = Reports::of(&ran.console).beyond(&self.reports) {
            return Some(format!("the guest reports: {report}"));
        }
        let Some(counts) = good_counts(&ran.console) else {
            return Some(format!(
                "the workload's calls failed; last words: {}",
                words()
            ));
        };
        if ran.probes.len() != judged.set.len() {
            return Some(format!(
                "{} probes came of {}",
                ran.probes.len(),
                judged.set.len()
            ));
        }
        judged
            .set
            .iter()
            .zip(&ran.probes)
            .find_map(|(id, probe)| miscounted(judged, *id, probe, &counts))
    }
}

fn is_good_end(ended: &Ended) -> bool {
    matches!(
        ended,
        Ended::Guest {
            end: GuestEnd::Poweroff,
            ..
        }
    )
}

fn describe(ended: &Ended) -> String {
    match ended {
        Ended::Guest { end, detail } => {
            let detail = detail
                .as_deref()
                .map_or(String::new(), |detail| format!(" ({detail})"));
            let word = serde_json::to_value(end).ok();
            let word = word
                .as_ref()
                .and_then(serde_json::Value::as_str)
                .unwrap_or("?")
                .to_owned();
            format!("{word}{detail}")
        }
        Ended::Silent(time) => format!("no line for {} s", time.as_secs()),
        Ended::SilentAtLimit(time) => {
            format!("no end in time, and no line for {} s", time.as_secs())
        }
        Ended::OverLimit(limit) => {
            format!("no end in {} s, but the console goes on", limit.as_secs())
        }
        Ended::Broken(why) => format!("no boot: {why}"),
    }
}

fn good_counts(console: &str) -> Option<Counts> {
    Counts::from_console(console).filter(|counts| counts.failed == 0)
}

/// The fault in a probe's counters, if any.
fn miscounted(
    judged: &Judged<'_>,
    id: FunctionId,
    probe: &ProbeSummary,
    counts: &Counts,
) -> Option<String> {
    let configuration = judged.configuration;
    if probe.state == ProbeState::Disabled {
        return Some(format!("the sweep has not enabled it again: {probe:?}"));
    }
    let mut of_hits = probe.clone();
    of_hits.missed.remove(UNWATCHED);
    if !is_accounted(&of_hits) {
        return Some(format!("hits are not accounted for: {probe:?}"));
    }
    let events = judged.ran.events.get(&*probe.probe).copied().unwrap_or(0);
    let reported = match configuration.site {
        Site::Return => probe.returns.unwrap_or(0),
        Site::Entry | Site::Boundary => probe.hits,
    };
    let is_whole = configuration.lifetime == Lifetime::WholeBoot;
    // Probes had events before their removal, but the counters are gone.
    let events_fit = match configuration.lifetime {
        Lifetime::Rearmed => events >= reported,
        Lifetime::WholeBoot | Lifetime::AddedLater => events == reported,
    };
    if configuration.action == HitAction::Recorded && !events_fit {
        return Some(format!("{events} events: {probe:?}"));
    }
    let function = judged.functions.get(id)?;
    let is_planted = is_whole && probe.state == ProbeState::Armed;
    if function.runs_at_boot && is_planted && configuration.site != Site::Return && probe.hits == 0
    {
        return Some(format!(
            "`int3_selftest` executes an `int3` in each boot: {probe:?}"
        ));
    }
    let (_, count) = COUNTED.iter().find(|(name, _)| *name == function.name)?;
    let made = count(counts);
    let is_exact = match configuration.site {
        Site::Entry | Site::Return => is_planted,
        Site::Boundary => false,
    };
    let fits = if is_exact {
        probe.hits == made
    } else {
        configuration.site == Site::Boundary || probe.hits <= made
    };
    (!fits).then(|| format!("the workload made {made} calls: {probe:?}"))
}

/// The probe with most of the hits, if any, in a guest that did not end.
fn busiest(judged: &Judged<'_>) -> Option<(FunctionId, String)> {
    let hits: u64 = judged.ran.probes.iter().map(|probe| probe.hits).sum();
    let of = judged.set.iter().zip(&judged.ran.probes);
    let (id, probe) = of.max_by_key(|(_, probe)| probe.hits)?;
    (probe.hits > 0).then(|| {
        (
            *id,
            format!(
                "{} of {hits} hits are of {}",
                probe.hits,
                judged.functions.name(*id)
            ),
        )
    })
}

/// The functions to try first: the function hit without end, or all functions hit.
fn suspects(judged: &Judged<'_>) -> Vec<FunctionId> {
    let probes = &judged.ran.probes;
    let all: u64 = probes.iter().map(|probe| probe.hits).sum();
    let most = probes.iter().map(|probe| probe.hits).max().unwrap_or(0);
    let hangs = matches!(judged.ran.ended, Ended::Silent(_));
    if hangs && most > LIVELOCK_HITS && most * LIVELOCK_PART > all {
        return busiest(judged).map(|(id, _)| id).into_iter().collect();
    }
    let hit = judged
        .set
        .iter()
        .zip(probes)
        .filter(|(_, probe)| probe.hits > 0);
    hit.map(|(id, _)| *id).collect()
}

fn tally(judged: &Judged<'_>) -> Tally {
    let mut tally = Tally {
        disabled: judged.ran.disabled as u64,
        ..Tally::default()
    };
    for (id, probe) in judged.set.iter().zip(&judged.ran.probes) {
        tally.hits += probe.hits;
        tally.exits += probe.exits;
        let name = judged.functions.name(*id);
        for (why, count) in &probe.missed {
            *tally.missed.entry(why.clone()).or_default() += count;
            tally.miss([MissedBy {
                function: name.clone(),
                reason: why.clone(),
                missed: *count,
                hits: probe.hits,
            }]);
        }
        match probe.state {
            ProbeState::Armed | ProbeState::Gone => tally.probed += 1,
            ProbeState::Pending | ProbeState::Disabled | ProbeState::Refused => {
                let why = probe.reason.as_deref().map_or_else(
                    || format!("{:?}", probe.state).to_lowercase(),
                    |why| reason(why, &name),
                );
                *tally.refused.entry(why).or_default() += 1;
            }
        }
    }
    tally
}

/// The tally of functions refused without a boot.
pub(super) fn refused(refused: &BTreeMap<String, u64>) -> Tally {
    Tally {
        refused: refused.clone(),
        ..Tally::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::busy::counting::tests::counted;
    use crate::sweep::mode::Mode;

    const DONE: &str = "[ 0.1] Linux\nworkload: done openat=6 read=2 getpid=10 nap=4 children=5 failed=0\r\n[ 9.1] reboot: Power down\n";

    fn ran(ended: Ended, console: &str, hits: &[u64]) -> Ran {
        Ran {
            ended,
            probes: hits.iter().map(|hits| counted(*hits, None)).collect(),
            disabled: 0,
            events: HashMap::new(),
            console: console.to_owned(),
            longest_silence: Duration::from_secs(1),
            took: Duration::from_secs(20),
            in_guest: Duration::from_secs(9),
            lifecycle: Ok(()),
        }
    }

    fn poweroff() -> Ended {
        Ended::Guest {
            end: GuestEnd::Poweroff,
            detail: None,
        }
    }

    fn verdict(mode: Mode, ran: &Ran) -> Outcome {
        let baseline = Baseline::of(&super::tests::ran(poweroff(), DONE, &[])).expect("good");
        let functions = Functions::named(&["__x64_sys_getpid", "vfs_read", "schedule"]);
        let set: Vec<FunctionId> = (0..).map(FunctionId).take(ran.probes.len()).collect();
        baseline.judge(&Judged {
            functions: &functions,
            configuration: mode.configuration(),
            set: &set,
            ran,
        })
    }

    fn harm(outcome: Outcome) -> (String, Vec<u32>) {
        let Outcome::Harmed { reason, suspects } = outcome else {
            panic!("{outcome:?}");
        };
        (reason, suspects.iter().map(|id| id.0).collect())
    }

    #[test]
    fn good_boot_is_tallied() {
        let Outcome::Well(tally) = verdict(Mode::EntryCounted, &ran(poweroff(), DONE, &[10, 7, 0]))
        else {
            panic!("not well");
        };
        assert_eq!((tally.probed, tally.hits, tally.exits), (3, 17, 17));
    }

    #[test]
    fn lost_hit_of_a_counted_function_is_harm() {
        for hits in [9, 11] {
            let (reason, _) = harm(verdict(
                Mode::EntryCounted,
                &ran(poweroff(), DONE, &[hits, 1, 0]),
            ));
            assert!(reason.contains("the workload made 10 calls"), "{reason}");
        }
        // Added later, the probe has seen only some of the calls.
        assert!(matches!(
            verdict(Mode::Live, &ran(poweroff(), DONE, &[9, 1, 0])),
            Outcome::Well(_)
        ));
        harm(verdict(Mode::Live, &ran(poweroff(), DONE, &[11, 1, 0])));
    }

    #[test]
    fn probe_that_stays_disabled_is_harm() {
        let mut boot = ran(poweroff(), DONE, &[0, 0]);
        boot.probes[1].state = ProbeState::Disabled;
        let (reason, _) = harm(verdict(Mode::Live, &boot));
        assert!(reason.contains("not enabled it again"), "{reason}");
    }

    #[test]
    fn missed_hit_of_an_entry_probe_is_harm() {
        let mut boot = ran(poweroff(), DONE, &[10, 7]);
        boot.probes[1].missed.insert("disarmed".to_owned(), 1);
        for mode in [Mode::EntryCounted, Mode::Live, Mode::Boundary] {
            let (reason, _) = harm(verdict(mode, &boot));
            assert!(reason.contains("not accounted for"), "{reason}");
        }
    }

    #[test]
    fn sweep_that_cannot_change_a_probe_gives_the_reason() {
        let ended = Ended::Guest {
            end: GuestEnd::Stopped,
            detail: None,
        };
        let mut boot = ran(ended, "", &[0]);
        boot.lifecycle = Err("cannot enable the probe".to_owned());
        let (reason, _) = harm(verdict(Mode::EntryCounted, &boot));
        assert_eq!(reason, "cannot enable the probe");
    }

    #[test]
    fn handler_of_int3_without_a_hit_is_harm() {
        let functions = Functions::named(&["asm_exc_int3"]);
        for (hits, is_harm) in [(0, true), (1, false)] {
            let judged = Judged {
                functions: &functions,
                configuration: Mode::Boundary.configuration(),
                set: &[FunctionId(0)],
                ran: &ran(poweroff(), DONE, &[hits]),
            };
            let baseline = Baseline::of(&super::tests::ran(poweroff(), DONE, &[])).expect("good");
            let outcome = baseline.judge(&judged);
            assert_eq!(matches!(outcome, Outcome::Harmed { .. }), is_harm);
        }
    }

    #[test]
    fn triple_fault_names_the_functions_that_were_hit_as_suspects() {
        let ended = Ended::Guest {
            end: GuestEnd::TripleFault,
            detail: None,
        };
        let (reason, suspects) = harm(verdict(
            Mode::EntryCounted,
            &ran(ended, "[ 1.0] smp: up\n", &[0, 3, 1]),
        ));
        assert!(reason.starts_with("triple-fault after 9.0 s"), "{reason}");
        assert!(reason.contains("smp: up"), "{reason}");
        assert_eq!(suspects, [1, 2]);
    }

    #[test]
    fn livelock_names_the_busiest_probe() {
        let silent = || Ended::Silent(Duration::from_secs(30));
        let (reason, suspects) = harm(verdict(
            Mode::EntryCounted,
            &ran(silent(), "x\n", &[5, 3, 2_500_000]),
        ));
        assert!(
            reason.contains("2500000 of 2500008 hits are of schedule"),
            "{reason}"
        );
        assert_eq!(suspects, [2]);
        let (_, suspects) = harm(verdict(
            Mode::EntryCounted,
            &ran(silent(), "x\n", &[5, 3, 0]),
        ));
        assert_eq!(suspects, [0, 1]);
    }

    #[test]
    fn warning_is_harm_and_little_time_is_slow() {
        let warned = format!("[ 3.0] WARNING: CPU: 0 PID: 1 at mm/slub.c:1\n{DONE}");
        harm(verdict(
            Mode::EntryCounted,
            &ran(poweroff(), &warned, &[10, 0, 0]),
        ));
        let late = format!(
            "[ 30.0] watchdog: BUG: soft lockup - CPU#0 stuck\n[ 30.0] Call Trace:\n{DONE}"
        );
        let outcome = verdict(Mode::EntryCounted, &ran(poweroff(), &late, &[10, 0, 0]));
        assert!(matches!(outcome, Outcome::Slow { .. }), "{outcome:?}");
        let over = Ended::OverLimit(Duration::from_secs(100));
        let outcome = verdict(Mode::EntryCounted, &ran(over, "x\n", &[10, 0, 0]));
        assert!(matches!(outcome, Outcome::Slow { .. }), "{outcome:?}");
    }

    #[test]
    fn guest_silent_at_its_limit_seems_to_hang_and_a_guest_that_prints_does_not() {
        let limit = Duration::from_secs(100);
        for (ended, expected) in [
            (Ended::SilentAtLimit(limit), true),
            (Ended::OverLimit(limit), false),
        ] {
            let outcome = verdict(Mode::EntryCounted, &ran(ended, "", &[20_000]));
            let Outcome::Slow { reason, hangs } = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(hangs, expected, "{reason}");
        }
    }

    #[test]
    fn unbalanced_return_probe_and_lost_event_are_harm() {
        let mut boot = ran(poweroff(), DONE, &[]);
        boot.probes = vec![counted(10, Some(8))];
        let (reason, _) = harm(verdict(Mode::Return, &boot));
        assert!(reason.contains("not accounted for"), "{reason}");
        boot.probes = vec![counted(10, Some(7))];
        assert!(matches!(verdict(Mode::Return, &boot), Outcome::Well(_)));
        boot.probes = vec![counted(10, None)];
        let (reason, _) = harm(verdict(Mode::EntryRecorded, &boot));
        assert!(reason.contains("0 events"), "{reason}");
        boot.events.insert("kprobe:f".into(), 10);
        assert!(matches!(
            verdict(Mode::EntryRecorded, &boot),
            Outcome::Well(_)
        ));
    }

    #[test]
    fn plant_that_was_withdrawn_unwatched_is_no_missed_hit() {
        let mut boot = ran(poweroff(), DONE, &[]);
        boot.probes = vec![counted(10, None)];
        boot.probes[0].missed.insert("unwatched".to_owned(), 1);
        boot.events.insert("kprobe:f".into(), 10);
        let verdict = verdict(Mode::EntryRecorded, &boot);
        assert!(matches!(verdict, Outcome::Well(_)), "{verdict:?}");
    }

    #[test]
    fn baseline_must_end_well() {
        let ended = Ended::Guest {
            end: GuestEnd::Panic,
            detail: Some("no init".to_owned()),
        };
        let error = Baseline::of(&ran(ended, "x", &[])).expect_err("no baseline");
        assert!(error.contains("panic (no init)"), "{error}");
        let failed = DONE.replace("failed=0", "failed=1");
        Baseline::of(&ran(poweroff(), &failed, &[])).expect_err("calls failed");
    }
}
