//! Judges a run: a [`Judge`] sees the guest's events and console on the way to the user.
//!
//! vCPU threads bring events, and the serial port brings the console; in a nested run, the launcher's threads bring both. The lock of the
//! judge is held only while a thread checks the expectations.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use events::judge::{Judge, Verdict};
use events::{Event, EventSink, Summary};
use manifest::{
    Action, Expectation, GuestEnd, ProbeAction, ProbeConfig, ProbeSpec, ProgramConflict,
    RequestedProbes,
};
use probes::{Kernel, resolve};
use thiserror::Error;

use crate::config::RunConfig;
use crate::exit::{Exit, Failure};
use crate::source_lines::Spellings;
use crate::stop::{StopReason, StopSignal};

/// The reason why the expectations cannot be judged: a probe with a filter or an aggregate is not the one that an expectation needs.
///
/// A manifest is checked as the user wrote it. Two lines may still have the same place, and the command line may add a probe.
#[derive(Debug, Error)]
#[error("[[expect]] {conflict}{explained}")]
pub(crate) struct AdmitError {
    conflict: Box<ProgramConflict>,
    /// The user's words for the places in `conflict`.
    explained: String,
}

impl Failure for AdmitError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        Some(self.conflict.help().to_owned())
    }
}

/// Adds the probes needed by `expectations` to `config`, and drops optional expectations with probes that the kernel lacks.
/// `spellings` has the user's words for places, for the error.
pub(crate) fn admit(
    config: &mut RunConfig,
    mut expectations: Vec<Expectation>,
    kernel: &Kernel,
    spellings: &Spellings,
) -> Result<Vec<Expectation>, AdmitError> {
    let has = |spec: &ProbeSpec| resolve(kernel, spec, 0).is_ok();
    expectations.retain(|expectation| {
        let mut probes = expectation.probes().into_iter();
        !expectation.optional || probes.all(|(spec, _)| has(spec))
    });
    let requested = RequestedProbes::new(&config.probes);
    let mut conflicts = expectations.iter().flat_map(|it| requested.conflicts(it));
    if let Some(conflict) = conflicts.next() {
        let explained = spellings.explain(&conflict.specs());
        return Err(AdmitError {
            conflict: Box::new(conflict),
            explained,
        });
    }
    drop(conflicts);
    let mut probes: Vec<Named> = config.probes.drain(..).map(Named::from).collect();
    for expectation in &expectations {
        for (spec, action) in expectation.probes() {
            add(&mut probes, spec, action);
        }
    }
    config.probes = probes.into_iter().map(|named| named.probe).collect();
    Ok(expectations)
}

/// A probe with its name, formatted once: many probes are compared with many expectations.
#[derive(Debug)]
struct Named {
    probe: ProbeConfig,
    name: String,
}

impl From<ProbeConfig> for Named {
    fn from(probe: ProbeConfig) -> Self {
        let name = probe.at.to_string();
        Self { probe, name }
    }
}

/// Probes the sites of `spec` exactly once, so each hit counts once.
fn add(probes: &mut Vec<Named>, spec: &ProbeSpec, action: ProbeAction) {
    let name = spec.to_string();
    let both = |one, other| match (one, other) {
        (Action::Aggregate(_), _) => one,
        (Action::Count, Action::Count) => Action::Count,
        _ => Action::Trace,
    };
    let action = Action::from(action);
    if probes
        .iter()
        .any(|Named { probe, .. }| probe.at == *spec && probe.has_program())
    {
        // There is no other probe at the place, or `admit` would have refused the expectation.
        return;
    }
    let mut wanted = ProbeConfig {
        action,
        ..ProbeConfig::from(spec.clone())
    };
    let mut place = None;
    let mut at = 0;
    probes.retain(|named| {
        let probe = &named.probe;
        let stays = !spec.stands_for(&named.name) || (place.is_none() && probe.at == *spec);
        if !stays || probe.at == *spec {
            wanted.action = both(wanted.action, probe.action);
            wanted.maxactive = wanted.maxactive.max(probe.maxactive);
            wanted.enabled &= probe.enabled;
            wanted.stack |= probe.stack;
            if wanted.variables.is_empty() {
                wanted.variables.clone_from(&probe.variables);
            }
        }
        if stays {
            if probe.at.stands_for(&name) {
                place.get_or_insert(at);
            }
            at += 1;
        }
        stays
    });
    if !wanted.variables_fit() {
        wanted.variables.clear();
    }
    match place.and_then(|place| probes.get_mut(place)) {
        Some(named) if named.probe.at == *spec => named.probe = wanted,
        Some(named) => named.probe.action = both(named.probe.action, action),
        None => probes.push(wanted.into()),
    }
}

/// Judges a run that is under way.
#[derive(Debug)]
pub(crate) struct Judged {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    judge: Mutex<Judge>,
    began: Instant,
    stop: StopSignal,
}

impl Judged {
    /// Starts the judge just before the run; `stop` ends the run.
    pub(crate) fn new(expectations: Vec<Expectation>, stop: StopSignal) -> Self {
        Self {
            shared: Arc::new(Shared {
                judge: Mutex::new(Judge::new(expectations)),
                began: Instant::now(),
                stop,
            }),
        }
    }

    /// Passes events on to `inner`.
    pub(crate) fn sink(&self, inner: Arc<dyn EventSink>) -> Arc<dyn EventSink> {
        if self.shared.lock().is_idle() {
            return inner;
        }
        Arc::new(JudgedSink {
            shared: Arc::clone(&self.shared),
            inner,
        })
    }

    /// Passes the console on to `inner`.
    pub(crate) fn console(&self, inner: Box<dyn Write + Send>) -> Box<dyn Write + Send> {
        if self.shared.lock().is_idle() {
            return inner;
        }
        Box::new(JudgedConsole {
            shared: Arc::clone(&self.shared),
            inner,
        })
    }

    /// The run is over.
    pub(crate) fn finish(self, summary: &Summary) -> Vec<Verdict> {
        let judge = std::mem::replace(&mut *self.shared.lock(), Judge::new(Vec::new()));
        judge.finish(summary)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn feed(&self, feed: impl FnOnce(&mut Judge, Duration)) {
        let mut judge = self.lock();
        feed(&mut judge, self.began.elapsed());
        if judge.stops().is_some() {
            drop(judge);
            self.stop.request(StopReason::Broken);
        }
    }
}

#[derive(Debug)]
struct JudgedSink {
    shared: Arc<Shared>,
    inner: Arc<dyn EventSink>,
}

impl EventSink for JudgedSink {
    fn event(&self, event: Event) {
        self.shared.feed(|judge, now| judge.event(now, &event));
        self.inner.event(event);
    }

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    fn await_room(&self, limit: Duration) {
        self.inner.await_room(limit);
    }
}

struct JudgedConsole {
    shared: Arc<Shared>,
    inner: Box<dyn Write + Send>,
}

impl Write for JudgedConsole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The guest has written all bytes, even if `inner` fails.
        self.shared.feed(|judge, now| judge.console(now, bytes));
        self.inner.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Whether the verdicts on a run count.
pub(crate) fn is_judged(end: GuestEnd, stop: Option<StopReason>) -> bool {
    match (end, stop) {
        // After a failed run, nothing is known.
        (GuestEnd::Failed, _) => false,
        // A missing event could still have happened later.
        (GuestEnd::Stopped, Some(StopReason::Signal)) => false,
        _ => true,
    }
}

/// The exit of a run, from the guest's end, the verdicts and the reason for a stop.
pub(crate) fn exit(end: GuestEnd, verdicts: &[Verdict], stop: Option<StopReason>) -> Exit {
    if !is_judged(end, stop) {
        return match end {
            GuestEnd::Failed => Exit::from(end),
            _ => Exit::Interrupted,
        };
    }
    if verdicts.iter().any(|verdict| verdict.broken.is_some()) {
        return Exit::ExpectationFailed;
    }
    // An expected end is never a failure.
    match verdicts.iter().any(|verdict| verdict.of_the_end) {
        true => Exit::Done,
        false => Exit::from(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(probes: &[ProbeConfig]) -> Vec<(String, Action)> {
        probes
            .iter()
            .map(|probe| (probe.at.to_string(), probe.action))
            .collect()
    }

    fn added(
        there: &[(&str, ProbeAction)],
        spec: &str,
        action: ProbeAction,
    ) -> Vec<(String, Action)> {
        let config = |(at, action): &(&str, ProbeAction)| ProbeConfig {
            action: Action::from(*action),
            ..ProbeConfig::from(at.parse::<ProbeSpec>().expect("a probe"))
        };
        let mut probes: Vec<_> = there.iter().map(config).map(Named::from).collect();
        add(&mut probes, &spec.parse().expect("a probe"), action);
        let probes: Vec<_> = probes.into_iter().map(|named| named.probe).collect();
        specs(&probes)
    }

    #[test]
    fn each_place_is_probed_once() {
        use ProbeAction::{Count, Trace};

        let one = |spec: &str, action| vec![(spec.to_owned(), Action::from(action))];
        assert_eq!(added(&[], "kprobe:a", Count), one("kprobe:a", Count));
        for (there, wanted, action) in [
            (Count, Count, Count),
            (Count, Trace, Trace),
            (Trace, Count, Trace),
        ] {
            assert_eq!(
                added(&[("kprobe:a", there)], "kprobe:a", wanted),
                one("kprobe:a", action)
            );
            assert_eq!(
                added(&[("kprobe:a*", there)], "kprobe:ab", wanted),
                one("kprobe:a*", action)
            );
            assert_eq!(
                added(&[("kprobe:ab", there)], "kprobe:a*", wanted),
                one("kprobe:a*", action)
            );
        }
        assert_eq!(
            added(
                &[("kprobe:a", Count), ("kprobe:a", Trace)],
                "kprobe:a",
                Count
            ),
            one("kprobe:a", Trace)
        );
        assert_eq!(added(&[("kretprobe:a", Count)], "kprobe:a", Count).len(), 2);
    }

    #[test]
    fn a_broken_expectation_beats_the_guest_s_end() {
        let verdict = |broken: Option<&str>, of_the_end| Verdict {
            expected: "x".to_owned(),
            broken: broken.map(str::to_owned),
            of_the_end,
        };
        let fails = [verdict(None, true), verdict(Some("no"), false)];
        let holds = [verdict(None, true)];
        let cases = [
            (GuestEnd::Panic, &fails[..], Exit::ExpectationFailed),
            (GuestEnd::Panic, &holds, Exit::Done),
            (GuestEnd::Panic, &[verdict(None, false)], Exit::GuestCrashed),
            (GuestEnd::Poweroff, &[], Exit::Done),
            (GuestEnd::Failed, &fails, Exit::HostCannot),
            (GuestEnd::Failed, &holds, Exit::HostCannot),
            (GuestEnd::Failed, &[], Exit::HostCannot),
        ];
        for (end, verdicts, expected) in cases {
            assert_eq!(exit(end, verdicts, None), expected, "{end:?} {verdicts:?}");
        }
        let signal = Some(StopReason::Signal);
        for verdicts in [&fails[..], &holds, &[]] {
            assert_eq!(exit(GuestEnd::Stopped, verdicts, signal), Exit::Interrupted);
        }
        assert_eq!(exit(GuestEnd::Poweroff, &holds, signal), Exit::Done);
        let broken = Some(StopReason::Broken);
        assert_eq!(
            exit(GuestEnd::Stopped, &fails, broken),
            Exit::ExpectationFailed
        );
    }
}
