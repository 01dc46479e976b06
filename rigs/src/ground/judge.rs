//! Two runs of a guest, without probes and with: whether they came to the same.

use std::collections::BTreeSet;

use events::{ProbeState, ProbeSummary};
use guest_images::workload::Counts;
use manifest::GuestEnd;

use super::COUNTED;
use super::events::{Ending, GroundEvent};
use crate::busy::counting::is_accounted;
use crate::busy::guest::Observed;

/// The guest's count for a probe.
pub(super) type Counted = fn(&Counts) -> u64;

/// The summary of the probed run, or the errors.
pub(super) fn judge(
    event: &GroundEvent,
    unprobed: &Observed,
    probed: &Observed,
) -> Result<String, String> {
    let mut wrong = Vec::new();
    let (before, after) = (&unprobed.summary.guest, &probed.summary.guest);
    if before.end != after.end {
        wrong.push(format!(
            "the unprobed run ends with {:?}, the probed one with {:?}",
            before.end, after.end
        ));
    }
    if before.end == GuestEnd::Timeout {
        wrong.push("the unprobed run comes to no end".to_owned());
    }
    if reports(unprobed) != reports(probed) {
        wrong.push(format!(
            "the unprobed guest reports {:?}, the probed one {:?}",
            reports(unprobed),
            reports(probed)
        ));
    }
    let known: BTreeSet<&str> = unprobed.complaints().into_iter().map(untimed).collect();
    let complaints = probed.complaints();
    let new = complaints
        .iter()
        .find(|line| !known.contains(untimed(line)));
    if let Some(complaint) = new {
        wrong.push(format!("the probed guest says: {complaint}"));
    }
    if event.ending != Ending::Resets {
        wrong.extend(miscounted(event, probed));
    }
    for probe in &probed.summary.probes {
        wrong.extend(unbalanced(probe));
    }
    if wrong.is_empty() {
        Ok(success_message(probed))
    } else {
        Err(probed.wrong(&wrong.join("; ")))
    }
}

/// The guest's reports of the event, equal in every run.
fn reports(run: &Observed) -> Vec<&str> {
    let lines = run.console.lines();
    lines
        .filter_map(|line| Some(line.split_once("ground: ")?.1))
        .collect()
}

/// A line of the kernel's without the time.
fn untimed(line: &str) -> &str {
    let behind = line.split_once("] ").map(|(_, text)| text);
    behind.filter(|_| line.starts_with('[')).unwrap_or(line)
}

/// The counts of the probed kernel, and of the next kernel.
fn counts(event: &GroundEvent, run: &Observed) -> Option<(Counts, Counts)> {
    let last = Counts::from_console(&run.console)?;
    match event.ending {
        Ending::HandsOver => Some((Counts::labelled(&run.console, "first")?, last)),
        Ending::PowersOff | Ending::Resets => Some((last, Counts::default())),
    }
}

fn miscounted(event: &GroundEvent, probed: &Observed) -> Vec<String> {
    let Some((first, next)) = counts(event, probed) else {
        return vec!["the guest does not say what it counted".to_owned()];
    };
    let mut wrong = Vec::new();
    if first.failed > 0 || next.failed > 0 {
        wrong.push(format!("calls of the guest failed: {first:?}, {next:?}"));
    }
    for (spec, counted) in COUNTED {
        let found = probed
            .summary
            .probes
            .iter()
            .find(|probe| probe.probe == spec);
        let made = counted(&first) + counted(&next);
        let is_right = |probe: &&ProbeSummary| {
            (probe.hits, probe.state) == (made, ProbeState::Armed) && made > 0
        };
        if found.filter(is_right).is_none() {
            wrong.push(format!("{made} hits of {spec} expected: {found:?}"));
        }
    }
    wrong
}

/// A message if the entries are not the sum of returns, calls in flight and missed calls.
fn unbalanced(probe: &ProbeSummary) -> Option<String> {
    (!is_accounted(probe)).then(|| format!("{probe:?}"))
}

fn success_message(probed: &Observed) -> String {
    let probes = &probed.summary.probes;
    let hit = probes.iter().filter(|probe| probe.hits > 0).count();
    let hits: u64 = probes.iter().map(|probe| probe.hits).sum();
    let refused = |probe: &&ProbeSummary| probe.state == ProbeState::Refused;
    let notes = match &probed.notes[..] {
        [] => String::new(),
        notes => format!("; notes: {}", notes.join(" | ")),
    };
    format!(
        "{} probes, {hit} of them with {hits} hits, {} refused{notes}",
        probes.len(),
        probes.iter().filter(refused).count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_kernel_line_is_left_out() {
        assert_eq!(untimed("[   12.345678] BUG: x"), "BUG: x");
        assert_eq!(untimed("BUG: a] b"), "BUG: a] b");
    }
}
