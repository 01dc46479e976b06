//! Registering, removing, enabling and disabling probes: each a transaction with the vCPUs paused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use events::ProbeId;
use manifest::{Action, ProbeConfig, ProbeKind};
use text::Paused;

use crate::ResolveError;
use crate::engine::Engine;
use crate::engine::arm::edits::{Change, Sites};
use crate::engine::arm::error::ArmError;
use crate::engine::engine_action::{EngineAction, with_engine_actions};
use crate::registry::Probe;

/// Resolved probes, not registered yet; see [`Engine::prepare`].
#[derive(Debug)]
pub struct Prepared {
    configs: Vec<ProbeConfig<EngineAction>>,
    probes: Vec<Arc<Probe>>,
    /// The kernel's slide at the look-up, if known: plain addresses depend on the slide.
    slide: Option<i64>,
}

/// The probes could not be registered; the registered probes are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// A probe specification cannot be resolved.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A plant could not be placed.
    #[error(transparent)]
    Arm(#[from] ArmError),
}

impl Engine {
    /// Resolves new probes while the guest runs: finding symbols and instructions takes longer than planting, and a mistake
    /// costs the guest nothing. Any thread may prepare probes at any time.
    ///
    /// # Errors
    ///
    /// If a probe specification cannot be resolved.
    pub fn prepare<A: Clone + Into<EngineAction>>(
        &self,
        new: &[ProbeConfig<A>],
    ) -> Result<Prepared, ResolveError> {
        let configs = with_engine_actions(new);
        let slide = self.running.slide();
        let optimisable = |new: &ProbeConfig<EngineAction>| match new.action {
            _ if new.at.kind == ProbeKind::Watch || new.at.kind.is_in_programs() => false,
            EngineAction::Configured(Action::Count | Action::Trace | Action::Aggregate(_)) => true,
            EngineAction::Handle(_) => new.filter.is_some(),
            EngineAction::HandleReturn(_) | EngineAction::Inject(_) => false,
        };
        if self.optimiser.is_optimising() && configs.iter().any(optimisable) {
            self.optimiser.prepare_optimising();
        }
        if configs.iter().any(|new| new.at.kind.is_in_programs()) {
            self.uprobes.prepare();
        }
        Ok(Prepared {
            probes: self.probes.resolve_all(&configs, slide)?,
            configs,
            slide,
        })
    }

    /// Registers probes: all or none.
    ///
    /// # Errors
    ///
    /// If a probe specification cannot be resolved, or a plant cannot be placed; then nothing has changed.
    pub fn register<A: Clone + Into<EngineAction>>(
        &self,
        paused: &dyn Paused,
        new: &[ProbeConfig<A>],
    ) -> Result<Vec<ProbeId>, RegisterError> {
        self.register_prepared(paused, self.prepare(new)?)
    }

    /// Registers prepared probes: all or none.
    ///
    /// # Errors
    ///
    /// If a plant cannot be placed; or if the kernel has been located since, and an address is not in the kernel's code.
    /// Then nothing has changed.
    pub fn register_prepared(
        &self,
        paused: &dyn Paused,
        prepared: Prepared,
    ) -> Result<Vec<ProbeId>, RegisterError> {
        let Prepared {
            configs,
            probes,
            slide,
        } = prepared;
        let added = match self.running.slide() {
            now if now == slide => probes,
            now => self.probes.resolve_all(&configs, now)?,
        };
        let ids = added.iter().map(|probe| probe.id).collect();
        let before = self.probes.list.load_full();
        let mut after = before.as_ref().clone();
        after.extend(added.iter().cloned());
        self.probes.list.store(Arc::new(after));
        added
            .iter()
            .for_each(|probe| self.probes.count_interest(probe));
        let has = |is_there: fn(&Probe) -> bool| added.iter().any(|probe| is_there(probe));
        let in_modules = has(|probe| probe.in_module.is_some());
        let in_tasks = has(|probe| probe.in_task.is_some());
        // A look finds the sites of all probes in modules, or at data of tasks, anew.
        if in_modules {
            self.module_watch.look_for_modules();
        }
        if in_tasks {
            self.task_watch.look_for_tasks();
        }
        let armed = match in_modules || in_tasks {
            true => self.armer.reconcile(paused),
            false => self.armer.change_probes(paused, &added, &[]),
        };
        if let Err(error) = armed {
            self.probes.list.store(Arc::clone(&before));
            added
                .iter()
                .for_each(|probe| self.probes.forget_interest(probe));
            if in_modules {
                self.module_watch.look_for_modules();
            }
            // The change may have failed late, and the look has changed the states of the others.
            let (probes, sites): (&[Arc<Probe>], _) = match in_modules || in_tasks {
                true => (&before, Sites::All),
                false => (&[], Sites::These(&[])),
            };
            let change = Change {
                probes,
                dropped: &added,
                sites,
            };
            if let Err(error) = self.armer.change(paused, change) {
                self.probes.refuse_pending(&error);
                // No probe of the list would give up the pages of these.
                self.watches
                    .forget(paused, &added)
                    .map_err(|error| ArmError(error.into()))?;
            }
            return Err(error.into());
        }
        Ok(ids)
    }

    /// Removes probes; unknown ids are skipped. Returns the number of removed probes.
    ///
    /// # Errors
    ///
    /// If bytes cannot be restored; then nothing has changed.
    pub fn unregister(&self, paused: &dyn Paused, ids: &[ProbeId]) -> Result<usize, ArmError> {
        let before = self.probes.list.load_full();
        let ids: BTreeSet<ProbeId> = ids.iter().copied().collect();
        let (gone, stay): (Vec<_>, Vec<_>) = before
            .iter()
            .cloned()
            .partition(|probe| ids.contains(&probe.id));
        self.probes.list.store(Arc::new(stay));
        gone.iter()
            .for_each(|probe| self.probes.forget_interest(probe));
        if let Err(error) = self.armer.change_probes(paused, &[], &gone) {
            self.probes.list.store(before);
            gone.iter()
                .for_each(|probe| self.probes.count_interest(probe));
            return Err(error);
        }
        self.returns.forget_calls(&gone);
        self.site_planter.prune_return_sites(paused);
        self.records.forget_owners(&gone);
        self.module_watch.forget_unwatched_modules(paused);
        Ok(gone.len())
    }

    /// Enables or disables a probe. Returns whether the id is known.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; then nothing has changed.
    pub fn set_enabled(
        &self,
        paused: &dyn Paused,
        id: ProbeId,
        enabled: bool,
    ) -> Result<bool, ArmError> {
        let all = self.probes.list.load_full();
        // A glob in a module has several probes.
        let probes: Vec<_> = all.iter().filter(|probe| probe.id == id).cloned().collect();
        let Some(before) = probes.first().map(|probe| probe.is_enabled()) else {
            return Ok(false);
        };
        let set = |enabled| probes.iter().for_each(|probe| probe.set_enabled(enabled));
        set(enabled);
        if let Err(error) = self.armer.change_probes(paused, &probes, &[]) {
            set(before);
            probes
                .iter()
                .for_each(|probe| self.probes.count_interest(probe));
            return Err(error);
        }
        if !enabled {
            self.returns.forget_calls(&probes);
            self.site_planter.prune_return_sites(paused);
        }
        Ok(true)
    }

    /// Sets the knob: `false` removes every plant and keeps each probe's own switch, `true` restores the plants. Some kernel
    /// event probes stay: they report a new use of memory, to which plants must not return.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; then nothing has changed.
    pub fn set_armed(&self, paused: &dyn Paused, armed: bool) -> Result<(), ArmError> {
        let before = self.probes.armed.swap(armed, Ordering::AcqRel);
        if armed && !before {
            // Modules and tasks have come and gone meanwhile.
            self.module_watch.look_for_modules();
            self.task_watch.look_for_tasks();
        }
        if let Err(error) = self.armer.reconcile(paused) {
            self.probes.armed.store(before, Ordering::Release);
            return Err(error);
        }
        if !armed {
            self.returns.forget_calls(&self.probes.list.load());
            self.site_planter.prune_return_sites(paused);
        }
        Ok(())
    }

    /// Removes every plant: the guest's text has the original bytes again. Exceptions are the kernel event probes of
    /// [`set_armed`](Self::set_armed), and the jump in the kernel's handler of `int3`, if one was needed: the jump stays
    /// like the detours.
    ///
    /// # Errors
    ///
    /// If a byte cannot be restored; then nothing has changed.
    pub fn disarm_all(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.set_armed(paused, false)
    }
}
