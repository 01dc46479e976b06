//! Turns: changes to the probes while the guest runs.

use std::collections::{BTreeMap, BTreeSet};

use events::{ProbeId, ProbeStatus};
use manifest::ProbeConfig;
use vmm::PausedGuard;

use super::super::counting::{is_accounted, only_counts};
use super::super::guest::Live;
use super::super::random::Random;
use super::disabled::DisabledProbes;
use super::functions::Function;
use errors::chain;

/// The maximum number of probes in a group.
const GROUP: usize = 32;
/// The maximum number of other probes at the sites of hot probes.
const BESIDE: usize = 24;
/// The share of turns that leave optimisation off, as a divisor.
const KNOB_TURNED_OFF: usize = 6;
/// The share of turns that remove and restore all plants, as a divisor.
const ALL_GO: usize = 12;

/// A hot function and the function's probe.
#[derive(Debug)]
pub(super) struct Hot {
    pub(super) function: Function,
    /// The probe, unless removed.
    pub(super) id: Option<ProbeId>,
    /// The hits of removed probes, and the hits without an exit.
    pub(super) hits: u64,
    pub(super) unexited: u64,
}

impl Hot {
    pub(super) fn new(function: Function, id: ProbeId) -> Self {
        Self {
            function,
            id: Some(id),
            hits: 0,
            unexited: 0,
        }
    }

    fn spec(&self) -> &str {
        &self.function.spec
    }

    /// Adds the probe's counts.
    pub(super) fn gather(&mut self, status: &ProbeStatus) -> Result<(), String> {
        if !is_accounted(&status.summary) {
            return Err(format!("entries are not accounted for: {status:?}"));
        }
        self.hits += status.summary.hits;
        self.unexited += status.summary.hits.saturating_sub(status.summary.exits);
        Ok(())
    }
}

/// The number of changes of each kind.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangeCounts {
    pub(super) turns: usize,
    pub(super) switched: usize,
    pub(super) removed: usize,
    pub(super) beside: usize,
    pub(super) knob_turned: usize,
    /// All plants were removed and restored.
    pub(super) rearmed: usize,
}

/// The hot probes, and the other probes at their sites.
#[derive(Debug)]
pub(super) struct Turns<'a> {
    pub(super) hot: Vec<Hot>,
    /// The specifications of further probes; a turn may add another probe at the same site.
    pub(super) exact: Vec<String>,
    beside: Vec<ProbeId>,
    pub(super) disabled: DisabledProbes,
    is_optimising: bool,
    pub(super) random: Random,
    pub(super) changes: ChangeCounts,
    live: &'a Live<'a>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(live: &'a Live<'a>, hot: Vec<Hot>, exact: Vec<String>, seed: u64) -> Self {
        Self {
            hot,
            exact,
            beside: Vec::new(),
            disabled: DisabledProbes::default(),
            is_optimising: true,
            random: Random::new(seed),
            changes: ChangeCounts::default(),
            live,
        }
    }

    /// Makes a turn. A new probe is resolved before the guest is paused.
    pub(super) fn turn(
        &mut self,
        check: impl FnOnce(&PausedGuard<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let which = self.random.below(12);
        let beside = match which {
            6..9 if self.beside.len() < BESIDE => Some(self.random_neighbour()?),
            _ => None,
        };
        let paused = self.live.control.pause_all();
        self.begin_pause(&paused)?;
        self.knob(&paused)?;
        // Even a run of few turns removes and restores all plants once.
        if self.random.below(ALL_GO) == 0 || self.changes.rearmed == 0 {
            self.live.engine.disarm_all(&paused).map_err(chain)?;
            self.live.engine.set_armed(&paused, true).map_err(chain)?;
            self.changes.rearmed += 1;
        }
        match (which, beside) {
            (_, Some(new)) => {
                let ids = self.live.engine.register(&paused, &[new]).map_err(chain)?;
                self.beside.extend(ids);
                self.changes.beside += 1;
            }
            (0..3, _) => {
                let at = self.random.below(self.hot.len());
                let enabled = self.hot[at].id.is_some_and(|id| self.disabled.has(id));
                self.switch(&paused, &[at], enabled)?;
            }
            (3..6, _) => {
                let group = self.group();
                let enabled = self.random.below(3) > 0;
                self.switch(&paused, &group, enabled)?;
            }
            (6..10, _) => self.remove_beside(&paused)?,
            _ => self.remove_or_add(&paused)?,
        }
        self.changes.turns += 1;
        check(&paused)
    }

    /// Checks the hits of the disabled probes since the last pause.
    fn begin_pause(&mut self, paused: &PausedGuard<'_>) -> Result<(), String> {
        let statuses = self
            .live
            .engine
            .inventory()
            .statuses_among(&self.disabled.ids(), usize::MAX);
        let hits: BTreeMap<ProbeId, u64> = statuses
            .iter()
            .map(|status| (status.id, status.summary.hits))
            .collect();
        self.disabled
            .pause(&paused.vcpu_rips(), |id| hits.get(&id).copied())
    }

    /// Another probe for a function with an optimised probe: a return probe, or a second counting probe.
    fn random_neighbour(&mut self) -> Result<ProbeConfig, String> {
        let of_exact = self.random.below(2) == 0;
        let spec = if of_exact {
            &self.exact[self.random.below(self.exact.len())]
        } else {
            self.hot[self.random.below(self.hot.len())].spec()
        };
        if self.random.below(4) > 0 {
            return only_counts(spec);
        }
        only_counts(&spec.replacen("kprobe:", "kretprobe:", 1)).or_else(|_| only_counts(spec))
    }

    fn knob(&mut self, paused: &PausedGuard<'_>) -> Result<(), String> {
        let wanted = self.random.below(KNOB_TURNED_OFF) > 0;
        if wanted != self.is_optimising {
            self.set_optimising(paused, wanted)?;
        }
        Ok(())
    }

    fn set_optimising(&mut self, paused: &PausedGuard<'_>, wanted: bool) -> Result<(), String> {
        self.live
            .engine
            .set_optimising(paused, wanted)
            .map_err(chain)?;
        self.is_optimising = wanted;
        self.changes.knob_turned += 1;
        Ok(())
    }

    /// A random group. Neighbours in the list belong to the same part of the kernel.
    fn group(&mut self) -> Vec<usize> {
        let first = self.random.below(self.hot.len());
        let many = 1 + self.random.below(GROUP);
        (first..self.hot.len()).take(many).collect()
    }

    fn switch(
        &mut self,
        paused: &PausedGuard<'_>,
        which: &[usize],
        enabled: bool,
    ) -> Result<(), String> {
        let engine = self.live.engine;
        for hot in which.iter().copied() {
            let is_other = |id: &ProbeId| self.disabled.has(*id) == enabled;
            let Some(id) = self.hot[hot].id.filter(is_other) else {
                continue;
            };
            engine.set_enabled(paused, id, enabled).map_err(chain)?;
            self.changes.switched += 1;
            match enabled {
                true => self.disabled.forget(id),
                false => self
                    .disabled
                    .disable(id, status(self.live, id)?.summary.hits),
            }
        }
        Ok(())
    }

    fn remove_beside(&mut self, paused: &PausedGuard<'_>) -> Result<(), String> {
        let many = self.random.below(self.beside.len() + 1);
        let gone: Vec<ProbeId> = (0..many)
            .map(|_| {
                self.beside
                    .swap_remove(self.random.below(self.beside.len()))
            })
            .collect();
        self.drop_beside(paused, &gone)
    }

    fn drop_beside(&self, paused: &PausedGuard<'_>, gone: &[ProbeId]) -> Result<(), String> {
        let statuses = self
            .live
            .engine
            .inventory()
            .statuses_among(&gone.iter().copied().collect(), usize::MAX);
        if let Some(wrong) = statuses.iter().find(|it| !is_accounted(&it.summary)) {
            return Err(format!("entries are not accounted for: {wrong:?}"));
        }
        self.live.engine.unregister(paused, gone).map_err(chain)?;
        Ok(())
    }

    /// Restores removed probes, or removes others.
    fn remove_or_add(&mut self, paused: &PausedGuard<'_>) -> Result<(), String> {
        let group = self.group();
        let comes = self.random.below(2) == 0;
        if comes {
            return self.add(paused, &group);
        }
        for at in group {
            let hot = &mut self.hot[at];
            let Some(id) = hot.id.take() else { continue };
            let last = status(self.live, id)?;
            hot.gather(&last)?;
            self.disabled.forget(id);
            self.live.engine.unregister(paused, &[id]).map_err(chain)?;
            self.changes.removed += 1;
        }
        Ok(())
    }

    fn add(&mut self, paused: &PausedGuard<'_>, which: &[usize]) -> Result<(), String> {
        let gone: Vec<usize> = which
            .iter()
            .copied()
            .filter(|at| self.hot[*at].id.is_none())
            .collect();
        let new: Vec<ProbeConfig> = gone
            .iter()
            .map(|at| self.hot[*at].function.probe.clone())
            .collect();
        let ids = self.live.engine.register(paused, &new).map_err(chain)?;
        for (at, id) in gone.into_iter().zip(ids) {
            self.hot[at].id = Some(id);
        }
        Ok(())
    }

    /// Registers and enables all hot probes, removes the other probes at their sites, and turns optimisation on.
    pub(super) fn all_on(&mut self, paused: &PausedGuard<'_>) -> Result<(), String> {
        self.begin_pause(paused)?;
        let beside = std::mem::take(&mut self.beside);
        self.drop_beside(paused, &beside)?;
        let all: Vec<usize> = (0..self.hot.len()).collect();
        self.add(paused, &all)?;
        self.switch(paused, &all, true)?;
        self.set_optimising(paused, true)
    }

    /// The ids of the registered hot probes.
    pub(super) fn ids(&self) -> BTreeSet<ProbeId> {
        self.hot.iter().filter_map(|hot| hot.id).collect()
    }
}

fn status(live: &Live<'_>, id: ProbeId) -> Result<ProbeStatus, String> {
    let mut statuses = live.engine.inventory().statuses_of(id);
    statuses.pop().ok_or_else(|| "a probe is gone".to_owned())
}
