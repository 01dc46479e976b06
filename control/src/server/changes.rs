//! Changes to registered probes, on the operator's thread. A change runs to the end even if the client has disconnected. No other thread
//! adds or removes names.

use std::collections::BTreeSet;
use std::sync::Mutex;

use errors::chain;
use events::{ProbeId, ProbeStatus};
use probes::ArmError;

use super::app::lock;
use super::names::Names;
use crate::api::{ChangeProbe, Changed, Pause, Problem, ProblemKind, Removed};
use crate::limits::PROBES_SHOWN;
use crate::operator::Bench;

/// Applies `wanted` to a probe; `None` if the probe does not exist.
pub(super) fn change(
    bench: &mut Bench<'_>,
    id: ProbeId,
    wanted: ChangeProbe,
    names: &Mutex<Names>,
) -> Result<Option<Changed>, Problem> {
    let target = bench.target();
    if target.statuses_of(id).is_empty() {
        return Ok(None);
    }
    if let Some(name) = &wanted.name {
        lock(names)
            .check(name, Some(id))
            .map_err(|problem| problem.at("/name".to_owned()))?;
    }
    let mut pause = Pause::default();
    if let Some(enabled) = wanted.enabled {
        let changed;
        (changed, pause) = bench.paused(|target, paused| target.set_enabled(paused, id, enabled));
        if !changed.map_err(cannot_change)? {
            return Ok(None);
        }
    }
    let mut names = lock(names);
    if let Some(name) = wanted.name {
        names.give(id, name);
    }
    Ok(Some(Changed {
        probes: named(target.statuses_of(id), &names),
        pause,
    }))
}

/// Removes the probe `id`, or all probes if `id` is `None`.
pub(super) fn remove(
    bench: &mut Bench<'_>,
    id: Option<ProbeId>,
    names: &Mutex<Names>,
) -> Result<Removed, Problem> {
    let ids = match id {
        Some(id) => vec![id],
        None => bench.target().ids(),
    };
    let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
    let (removed, pause) = bench.paused(|target, paused| {
        // The final counts: no probe fires during the pause.
        let statuses = target.statuses_among(&known, PROBES_SHOWN);
        let removed = target.unregister(paused, &ids)?;
        Ok((removed, statuses))
    });
    let (removed, statuses) = removed.map_err(cannot_change)?;
    let mut names = lock(names);
    let probes = named(statuses, &names);
    names.retain(|id| !known.contains(&id));
    Ok(Removed {
        removed: removed as u64,
        probes,
        pause,
    })
}

/// The statuses with the names of their probes.
pub(super) fn named(statuses: Vec<ProbeStatus>, names: &Names) -> Vec<ProbeStatus> {
    let names = names.by_id();
    let named = statuses.into_iter().map(|status| ProbeStatus {
        name: names.get(&status.id).cloned(),
        ..status
    });
    named.collect()
}

pub(super) fn cannot_change(error: ArmError) -> Problem {
    ProblemKind::CannotChange.with(chain(&error))
}
