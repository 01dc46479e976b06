//! The summary's counts for a probe: seen hits, and hits that may have been missed.

use std::collections::BTreeSet;

use manifest::{DataBase, Location, ProbeKind, ProbeSpec};

use crate::{AwaitsModule, NotLoaded, NotStarted, ProbeState, ProbeSummary, Summary};

/// Reasons of executions that were seen, and of calls that a handler does not follow. Any other reason stands for unseen executions, writes or returns, so a new
/// reason cannot make an expectation hold that has not been checked.
const SEEN: [&str; 2] = ["declined", "ring-full"];

/// A call that never returned. A function of a program may have returned unseen before: from a part of it elsewhere in the file.
const ABANDONED: &str = "abandoned";

/// The counts of all probes matched by one specification.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Hits; of a return probe, returns.
    pub(super) seen: u64,
    /// The number of unseen hits or returns; `reasons` has the reasons.
    pub(super) unseen: u64,
    reasons: Vec<String>,
    /// The reason why the counts are unknown.
    pub(super) blind: Option<String>,
}

impl Tally {
    pub(super) fn of(spec: &ProbeSpec, summary: &Summary) -> Self {
        let mut tally = Self::default();
        let mut names = BTreeSet::new();
        for probe in &summary.probes {
            // Two patterns may overlap: each entry of a probe then has the whole count, and only one entry counts.
            if spec.stands_for(&probe.probe) && names.insert(&probe.probe) {
                tally.add(spec, probe);
            }
        }
        if names.is_empty() {
            tally.blind = Some(format!("{spec} is none of the run's probes"));
        }
        tally
    }

    fn add(&mut self, spec: &ProbeSpec, probe: &ProbeSummary) {
        let seen = match spec.kind.is_return() {
            false => probe.hits,
            true => probe.returns.unwrap_or_default(),
        };
        // A guest's kernel can write any number to the counters of detours.
        self.seen = self.seen.saturating_add(seen);
        for (reason, count) in &probe.missed {
            let is_unseen = match reason.as_str() {
                ABANDONED => spec.kind == ProbeKind::Uretprobe,
                other => !SEEN.contains(&other),
            };
            if *count > 0 && is_unseen {
                self.unseen = self.unseen.saturating_add(*count);
                self.reasons.push(format!("{reason} {count}"));
            }
        }
        if let (ProbeKind::Uretprobe, Some(in_flight @ 1..)) = (spec.kind, probe.in_flight) {
            self.unseen = self.unseen.saturating_add(in_flight);
            self.reasons.push(format!("in flight {in_flight}"));
        }
        // A probe in a module that was never loaded was never executed. A probe that waits for another reason may have been executed.
        let absent = absent(spec);
        let waits = probe.state == ProbeState::Pending && probe.reason != absent;
        let blind = match probe.state {
            ProbeState::Refused => "could not be armed",
            ProbeState::Disabled => "was disabled",
            ProbeState::Pending if waits => "was never armed",
            ProbeState::Pending | ProbeState::Armed | ProbeState::Gone => return,
        };
        let why = probe.reason.as_deref().unwrap_or("no reason given");
        self.blind
            .get_or_insert_with(|| format!("{} {blind}: {why}", probe.probe));
    }

    /// The unseen hits, for a message.
    pub(super) fn unseen_in_words(&self) -> String {
        format!(
            "{} were not seen ({})",
            self.unseen,
            self.reasons.join(", ")
        )
    }
}

/// The reason of a probe that waits for its module or its process.
fn absent(spec: &ProbeSpec) -> Option<String> {
    if let Location::Data(data) = &spec.location
        && let DataBase::TaskMember { pid, .. } = data.base
    {
        return Some(NotStarted { pid }.to_string());
    }
    if spec.kind == ProbeKind::Tracepoint {
        let spec = spec.to_string();
        return Some(AwaitsModule { spec }.to_string());
    }
    let module = spec.module.clone()?;
    let module = module.name;
    Some(NotLoaded { module }.to_string())
}
