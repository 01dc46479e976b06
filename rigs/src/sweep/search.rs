//! Finds the functions that make a boot fail.
//!
//! A binary search over prefixes of the failing set finds a function X such that the prefix that ends with X fails and the
//! prefix before X does not. If X fails alone, X is the culprit. If not, X needs companions: the same search over the rest
//! of the prefix, beside X, finds them one by one. A boot may fail by chance: before the search for companions, the failing
//! prefix is booted a second time.

use super::outcome::{FindingKind, FunctionId, Outcome};

/// Boots the guest with probes on functions.
pub(super) trait Boots {
    /// The reason for a missing outcome.
    type Error;

    /// The outcome for `set`, from an earlier boot with the same functions if possible.
    fn boot(&mut self, set: &[FunctionId]) -> Result<Outcome, Self::Error>;

    /// The outcome of a second boot with the same functions.
    fn boot_again(&mut self, set: &[FunctionId]) -> Result<Outcome, Self::Error>;
}

/// A set of functions that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Culprit {
    pub(super) kind: FindingKind,
    /// The smallest failing set found.
    pub(super) functions: Vec<FunctionId>,
    pub(super) reason: String,
}

/// The maximum number of functions that only fail together.
const TOGETHER_MAX: usize = 4;

/// A failing set and the reason of the failure.
#[derive(Clone, Debug)]
struct Failing {
    set: Vec<FunctionId>,
    reason: String,
}

/// A culprit of `set`, whose boot failed for `reason`.
pub(super) fn culprit<B: Boots>(
    boots: &mut B,
    set: &[FunctionId],
    reason: &str,
    suspects: &[FunctionId],
) -> Result<Culprit, B::Error> {
    let ordered = suspects_first(set, suspects);
    let first_middle = suspects.len().min(ordered.len());
    let failing = shortest_prefix(boots, &[], &ordered, reason, first_middle)?;
    let Some(last) = failing.set.last().copied() else {
        return Ok(Culprit {
            kind: FindingKind::HarmfulAtTimes,
            functions: Vec::new(),
            reason: reason.to_owned(),
        });
    };
    let mut together = vec![last];
    if let Some(reason) = harm(boots.boot(&together)?) {
        return Ok(Culprit {
            kind: FindingKind::Harmful,
            functions: together,
            reason,
        });
    }
    if harm(boots.boot_again(&failing.set)?).is_none() {
        return Ok(at_times(failing));
    }
    while together.len() < TOGETHER_MAX {
        let others: Vec<FunctionId> = failing
            .set
            .iter()
            .copied()
            .filter(|function| !together.contains(function))
            .collect();
        let found = shortest_prefix(boots, &together, &others, &failing.reason, 0)?;
        match found.set.last() {
            Some(function) if found.set.len() > together.len() => together.push(*function),
            _ => return Ok(at_times(failing)),
        }
        if let Some(reason) = harm(boots.boot(&together)?) {
            return Ok(Culprit {
                kind: FindingKind::HarmfulTogether,
                functions: together,
                reason,
            });
        }
    }
    Ok(at_times(failing))
}

fn at_times(failing: Failing) -> Culprit {
    Culprit {
        kind: FindingKind::HarmfulAtTimes,
        functions: failing.set,
        reason: failing.reason,
    }
}

/// The suspects in their order, then the others.
fn suspects_first(set: &[FunctionId], suspects: &[FunctionId]) -> Vec<FunctionId> {
    let known: std::collections::BTreeSet<FunctionId> = set.iter().copied().collect();
    let suspected: std::collections::BTreeSet<FunctionId> = suspects.iter().copied().collect();
    let others = set.iter().filter(|function| !suspected.contains(function));
    suspects
        .iter()
        .filter(|function| known.contains(function))
        .chain(others)
        .copied()
        .collect()
}

/// The shortest prefix of `ordered` that fails beside `fixed`, with `fixed` in front. All of `ordered` is known to fail; an empty
/// prefix is assumed not to fail.
fn shortest_prefix<B: Boots>(
    boots: &mut B,
    fixed: &[FunctionId],
    ordered: &[FunctionId],
    reason: &str,
    first_middle: usize,
) -> Result<Failing, B::Error> {
    let prefix = |len: usize| [fixed, &ordered[..len]].concat();
    let (mut passes, mut fails) = (0, ordered.len());
    let mut reason = reason.to_owned();
    let mut middle = first_middle;
    while passes + 1 < fails {
        if middle <= passes || middle >= fails {
            middle = usize::midpoint(passes, fails);
        }
        match harm(boots.boot(&prefix(middle))?) {
            Some(why) => (fails, reason) = (middle, why),
            None => passes = middle,
        }
        middle = usize::midpoint(passes, fails);
    }
    Ok(Failing {
        set: prefix(fails),
        reason,
    })
}

/// The reason of a harmful boot. A slow boot is not harmful here: the batches handle slow boots.
fn harm(outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Harmed { reason, .. }
        | Outcome::Slow {
            reason,
            hangs: true,
        } => Some(reason),
        Outcome::Well(_) | Outcome::Slow { .. } => None,
    }
}
