//! The outcome of a boot with probes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A function, by its position in the order of the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FunctionId(pub u32);

/// The tally of the probes in a boot that went well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Functions whose probe was armed.
    pub probed: u64,
    /// Functions whose probe was disabled for a part of the boot, after many exits.
    #[serde(default)]
    pub disabled: u64,
    /// Functions whose probe was not armed, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Hits of all probes.
    pub hits: u64,
    /// VM exits that the hits took.
    pub exits: u64,
    /// Hits without a report and calls without a followed return, by reason.
    pub missed: BTreeMap<String, u64>,
    /// The functions that missed most, at most [`Tally::MOST_MISSED`], the first first.
    #[serde(default)]
    pub most_missed: Vec<MissedBy>,
}

/// The misses of a function's probe, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedBy {
    /// The function's name.
    pub function: String,
    /// The reason.
    pub reason: String,
    /// The number of misses.
    pub missed: u64,
    /// The probe's hits.
    pub hits: u64,
}

impl Tally {
    /// The number of functions named that missed most.
    const MOST_MISSED: usize = 5;

    /// Notes the misses of a probe.
    pub(super) fn miss(&mut self, missed: impl IntoIterator<Item = MissedBy>) {
        for missed in missed {
            let before = |other: &MissedBy| other.missed >= missed.missed;
            let at = self.most_missed.partition_point(before);
            self.most_missed.insert(at, missed);
            self.most_missed.truncate(Self::MOST_MISSED);
        }
    }

    /// Adds another boot's tally, of other functions.
    pub(super) fn add(&mut self, other: &Self) {
        self.probed += other.probed;
        self.disabled += other.disabled;
        self.hits += other.hits;
        self.exits += other.exits;
        for (sums, counts) in [
            (&mut self.refused, &other.refused),
            (&mut self.missed, &other.missed),
        ] {
            for (reason, count) in counts {
                *sums.entry(reason.clone()).or_default() += count;
            }
        }
        self.miss(other.most_missed.iter().cloned());
    }
}

/// The verdict on a boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The guest did not notice the probes, and every count is exact.
    Well(Tally),
    /// The guest or a count suffered.
    Harmed {
        /// The guest's end, or the wrong count.
        reason: String,
        /// Functions that the search tries first: the functions hit, or the function hit without end.
        suspects: Vec<FunctionId>,
    },
    /// The boot ran out of time, or the guest complained of too little time. A busy host looks the same.
    Slow {
        /// The reason.
        reason: String,
        /// Whether the guest, at the end of its time, looked like a guest that hangs.
        #[serde(default)]
        hangs: bool,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well(tally) => write!(
                f,
                "well, {} probed, {} of them disabled for a time, {} hits, {} exits, missed {:?}",
                tally.probed, tally.disabled, tally.hits, tally.exits, tally.missed
            ),
            Self::Harmed { reason, .. } => write!(f, "HARMED: {reason}"),
            Self::Slow { reason, .. } => write!(f, "slow: {reason}"),
        }
    }
}

/// Functions that harm the guest, or make it too slow to judge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of finding.
    pub kind: FindingKind,
    /// The functions' names.
    pub functions: Vec<String>,
    /// The reason of the smallest failing boot.
    pub reason: String,
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// A boot with the function alone fails.
    Harmful,
    /// A boot with the functions fails, and with neither of them alone.
    HarmfulTogether,
    /// A boot with the functions failed, and a second boot with the same functions did not; or the smallest failing set is beyond
    /// the limit of the search.
    HarmfulAtTimes,
    /// A boot with the function alone does not end in time.
    TooSlow,
}

impl FindingKind {
    /// Whether the guest was harmed.
    #[must_use]
    pub const fn is_harm(self) -> bool {
        !matches!(self, Self::TooSlow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed_by(function: &str, missed: u64) -> MissedBy {
        MissedBy {
            function: function.to_owned(),
            reason: "abandoned".to_owned(),
            missed,
            hits: 100,
        }
    }

    #[test]
    fn functions_that_missed_most_come_first_and_the_others_are_not_named() {
        let mut tally = Tally::default();
        tally.miss([missed_by("a", 3), missed_by("b", 7)]);
        let mut other = Tally::default();
        other.miss((0..9).map(|missed| missed_by("c", missed)));
        tally.add(&other);
        let named: Vec<(&str, u64)> = tally
            .most_missed
            .iter()
            .map(|by| (&*by.function, by.missed))
            .collect();
        assert_eq!(named, [("c", 8), ("b", 7), ("c", 7), ("c", 6), ("c", 5)]);
    }
}
