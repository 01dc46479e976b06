//! Probes in modules: pending until the module is loaded, gone when it is unloaded, and armed again when it returns.
//!
//! ```text
//!            do_init_module: bound to its place           do_free_init: those in init text
//!  pending ────────────────────────────────────▶ armed ─────────────────────────────────▶ gone
//!     ▲                                            │ free_module                            │
//!     └── gone, with nothing planted ◀─────────────┴── do_init_module: bound again ◀────────┘
//! ```
//!
//! The engine reads the modules from the guest's memory, through the kernel's own page tables from the time when the first
//! task was about to run. The engine watches modules only while a probe or a return site of followed calls is in a module:
//! with the first probe, the list is read anew.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use address::Gva;
use errors::chain;
use events::{ProbeId, ProbeState};
use introspect::{Btf, Module, ModuleEvent, ModuleState, ModuleTypes, ModulesError, PagingState};
use text::{GuestError, Paused, Vcpu};

use crate::ResolveError;
use crate::engine::arm::Armer;
use crate::engine::module_sites::{FoundSite, ModuleSites, may_be_in};
use crate::engine::module_tracepoints;
use crate::engine::module_types::KeptTypes;
use crate::engine::plants::Plants;
use crate::engine::probe_list::ProbeList;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::following::Following;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::module::{LoadedModule, ModuleCode, ModuleSymbols};
use crate::registry::Probe;
use crate::resolve::{Place, ProbeNumber, ResolveProblem, in_module};

/// Whether `place` holds for the site of a module's probe. The site must be found anew after a change of the module.
fn is_bound_to(probe: &Probe, place: impl Fn(&Place) -> bool) -> bool {
    probe.in_module.is_some() && probe.place().is_some_and(|at| place(&at))
}

/// Binds the probes in modules to their sites, as modules come and go. The other vCPUs are paused.
#[derive(Debug)]
pub(crate) struct ModuleWatch {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) following: Arc<Following>,
    pub(crate) records: Arc<Records>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) armer: Arc<Armer>,
    pub(crate) types: KeptTypes,
    /// There was no room for a module once, and a note has said so.
    pub(crate) is_full: AtomicBool,
}

/// Why a module is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// The module's init function is about to run.
    AtLoad,
    /// The module is on the guest's list.
    FromList,
}

impl ModuleWatch {
    /// Ends the watch if no plant can be in a module any more.
    pub(crate) fn forget_unwatched_modules(&self, paused: &dyn Paused) {
        if self.probes.watches_modules() || !self.running.modules.is_kept() {
            return;
        }
        self.running.modules.forget();
        self.types.forget_all();
        // The kernel event probes for modules are not needed any more.
        if let Err(error) = self.armer.change_sites(paused, &[]) {
            self.reporter
                .note(None, format!("modules are still watched: {error}"));
        }
    }

    /// Handles an event of the module whose address the vCPU holds, or of all modules.
    pub(crate) fn on_module_event(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        event: ModuleEvent,
    ) -> Result<(), GuestError> {
        // The records belong to sites that are about to go.
        self.records.take_out_records();
        // The first argument of the call: see `ModuleEvent::module_register`.
        let address = Gva(vcpu.regs()?.rdi);
        match event {
            ModuleEvent::Loaded => match self.running.read_module(|modules, paging| {
                modules.read_one(&self.running.planter, paging, address)
            }) {
                Ok(Some(module)) => self.module_is_loaded(&module),
                Ok(None) => return Ok(()),
                Err(error) => self
                    .reporter
                    .note(None, format!("a module cannot be read: {error}")),
            },
            ModuleEvent::InitFreed => self.module_init_is_freed(),
            ModuleEvent::Unloading => self.module_is_unloaded(address),
        }
        let mut reconciled = self.armer.reconcile(paused);
        if let Err(error) = &reconciled
            && event == ModuleEvent::Loaded
            && self.probes.refuse_pending_watches(error)
        {
            // Pages that cannot be protected do not concern the other probes.
            reconciled = self.armer.reconcile(paused);
        }
        if let Err(error) = reconciled {
            match event {
                ModuleEvent::Loaded => self.probes.refuse_pending(&error),
                _ => self
                    .reporter
                    .note(None, format!("plants in a module stay: {error}")),
            }
        }
        Ok(())
    }

    /// Reads all modules anew, after a time without a watch on modules, or for new probes. Watchpoints stay where they are if each unload since has been
    /// seen: a module that is going still writes its data.
    pub(crate) fn look_for_modules(&self) {
        let has_seen_all = self.plants.see_modules_go_now();
        let before = std::mem::take(&mut *self.running.modules.lock());
        for probe in self.probes.list.load().iter() {
            let place = probe.place().filter(|_| probe.in_module.is_some());
            let Some(place) = place else {
                continue;
            };
            let module = place.module().and_then(|address| before.get(&address));
            match module.filter(|_| has_seen_all && probe.is_watch()) {
                // There is room: the modules before were no fewer.
                Some(module) => {
                    let _ = self.running.modules.keep(Arc::clone(module));
                }
                None => self.lose_place(probe),
            }
        }
        let Some(located) = self
            .running
            .located
            .get()
            .filter(|_| self.probes.watches_modules())
        else {
            return;
        };
        let symbols = self.running.kernel.symbols().rebased(located.slide);
        let read = self
            .running
            .read_module(|modules, paging| modules.read(&self.running.planter, paging, &symbols));
        match read {
            Ok(modules) => {
                // The latest is the first of the list. A module passes tracepoints of modules that were loaded before.
                for module in modules.unwrap_or_default().into_iter().rev() {
                    if module.state() != ModuleState::Going {
                        self.bind(&module, Read::FromList);
                    }
                }
            }
            Err(error) => self
                .reporter
                .note(None, format!("the modules cannot be read: {error}")),
        }
        // If a module is about to go, or is unreadable, the time of the release of its text is unknown.
        self.following.lose_return_sites(|site| {
            self.running.kernel.holds_code(located.linked(site))
                || self.running.modules.holding(site).is_some()
        });
    }

    /// The known plants in memory that is neither text of the kernel nor of a module that the guest has loaded: once the guest has
    /// booted, there must be none. The guest's list of modules is behind while a vCPU loads or unloads a module.
    ///
    /// # Errors
    ///
    /// If the list of modules cannot be read.
    pub(crate) fn stray_plants(&self, _paused: &dyn Paused) -> Result<Vec<Gva>, ModulesError> {
        let Some(located) = self.running.located.get() else {
            return Ok(Vec::new());
        };
        let symbols = self.running.kernel.symbols().rebased(located.slide);
        let modules = self
            .running
            .read_module(|modules, paging| modules.read(&self.running.planter, paging, &symbols))?;
        let modules = modules.unwrap_or_default();
        let is_stray = |at: &Gva| {
            let linked = located.linked(*at);
            let in_kernel =
                self.running.kernel.holds_code(linked) && !self.running.kernel.is_init(linked);
            !in_kernel && !modules.iter().any(|module| module.holds_code(*at))
        };
        let table = self.plants.table.load();
        let plants = table.plants().chain(table.in_registers());
        Ok(plants.map(|plant| plant.at).filter(is_stray).collect())
    }

    fn module_is_loaded(&self, module: &Module) {
        let text = module.regions().to_vec();
        let is_new = |site| text.iter().any(|region| region.range.contains(&site));
        self.return_sites.allow(is_new);
        self.following.forget_landings(|at| !is_new(at));
        self.types.forget(module.address());
        self.bind(module, Read::AtLoad);
    }

    /// Keeps `module`. If there is no room, a former module at the address is gone with its probes.
    fn keep(&self, module: &Arc<LoadedModule>) -> bool {
        let kept = self.running.modules.keep(Arc::clone(module));
        if let Err(error) = &kept {
            self.module_is_unloaded(module.address());
            if !self.is_full.swap(true, Ordering::Relaxed) {
                self.reporter.note(None, error.to_string());
            }
        }
        kept.is_ok()
    }

    /// Finds the sites of the probes in `module`.
    fn bind(&self, module: &Module, read: Read) {
        let Some(paging) = self.running.modules.paging() else {
            return;
        };
        let before = self.probes.list.load_full();
        let awaits_tracepoints = before.iter().any(|probe| probe.awaits_tracepoint());
        let tracepoints = awaits_tracepoints
            .then(|| module_tracepoints::read(&self.running, module, &paging))
            .flatten();
        let module = LoadedModule::new(module.clone(), &self.running.planter, &paging);
        let module = Arc::new(module.with_tracepoints(tracepoints));
        if !self.keep(&module) {
            return;
        }
        if !before.iter().any(|probe| may_be_in(probe, &module)) {
            return;
        }
        for unread in module.unread() {
            let text = format!("part of the module {}: {unread}", module.name());
            self.reporter.note(None, text);
        }
        let own = OnceCell::new();
        let own = || own.get_or_init(|| self.types_of(module.module(), &paging, read));
        let types = |of: Option<Gva>| match of {
            None => self.running.kernel.types().ok().cloned(),
            Some(at) if at == module.address() => own().clone(),
            Some(at) => {
                let other = self.running.modules.at(at)?;
                self.types_of(other.module(), &paging, Read::FromList)
            }
        };
        let sites = ModuleSites::new(&module, &self.running, &types);
        // The known matches of each pattern.
        let mut known: BTreeSet<(ProbeId, Arc<str>)> = before
            .iter()
            .filter(|probe| probe.in_module.is_some() && !probe.is_glob())
            .map(|probe| (probe.id, Arc::clone(&probe.name)))
            .collect();
        let mut after = Vec::with_capacity(before.len());
        let mut number = ProbeNumber::new(before.len(), 0);
        for probe in before.iter() {
            after.push(Arc::clone(probe));
            let spec = probe.in_module.as_ref();
            let Some(spec) = spec.filter(|_| may_be_in(probe, &module)) else {
                continue;
            };
            if read == Read::FromList && !self.may_bind_now(probe, module.module()) {
                continue;
            }
            match sites.of(probe, spec) {
                Err(problem) if read == Read::FromList && is_expected(probe, &problem) => {
                    probe.set_signature(None);
                    probe.set_record(None);
                }
                Err(problem) => {
                    let spec = spec.to_string();
                    self.probes
                        .refuse(probe, ResolveError { spec, problem }.to_string());
                }
                Ok(mut found) if probe.is_glob() => {
                    found.retain(|found| known.insert((probe.id, Arc::clone(&found.name))));
                    // The guest chooses the names, and may load modules again and again.
                    if let Err(error) = number.add(spec, found.len()) {
                        self.probes.refuse(probe, error.to_string());
                        continue;
                    }
                    for mut found in found {
                        let Some(spec) = found.spec.take() else {
                            continue;
                        };
                        let matched = probe.matched(&found.name).awaiting(spec);
                        self.place(&matched, found);
                        after.push(Arc::new(matched));
                    }
                }
                Ok(found) => found.into_iter().for_each(|found| self.place(probe, found)),
            }
        }
        if after.len() != before.len() {
            self.probes.list.store(Arc::new(after));
        }
    }

    /// Whether the probe can be bound to a module of the guest's list. A module that is coming may still fail before its init function, and its memory is
    /// freed without an event: its data is watched from the init function on.
    fn may_bind_now(&self, probe: &Probe, module: &Module) -> bool {
        let is_bound = || {
            let place = probe.place();
            place.is_some_and(|place| place.module() == Some(module.address()))
        };
        !probe.is_watch() || (module.state() != ModuleState::Coming && !is_bound())
    }

    /// Binds the watchpoints that have waited for the end of the init function of `module`.
    fn bind_watches(&self, module: &LoadedModule) {
        let code = ModuleCode {
            module,
            planter: &self.running.planter,
        };
        let symbols = ModuleSymbols::new(module.module());
        for probe in self.probes.list.load().iter() {
            let is_waiting = probe.is_watch()
                && matches!(probe.status.state(), ProbeState::Pending | ProbeState::Gone)
                && probe.place().is_none()
                && may_be_in(probe, module);
            let Some(spec) = probe.in_module.as_ref().filter(|_| is_waiting) else {
                continue;
            };
            let found = in_module(module, &code, &symbols, spec);
            match found.map(|mut found| found.pop().map(|site| site.place)) {
                Ok(Some(Ok(place))) => {
                    probe.set_place(Some(place));
                    probe.status.set_state(ProbeState::Pending, None);
                }
                Ok(Some(Err(refusal))) => self.probes.refuse(probe, refusal.to_string()),
                Ok(None) => (),
                Err(problem) => {
                    let spec = spec.to_string();
                    self.probes
                        .refuse(probe, ResolveError { spec, problem }.to_string());
                }
            }
        }
    }

    /// The types of a module. At a load, a note says why there are none; before, the guest may not have them yet.
    fn types_of(&self, module: &Module, paging: &PagingState, read: Read) -> Option<Btf> {
        let kernel = self.running.kernel.types().ok()?;
        let slide = self.running.slide()?.cast_unsigned();
        let symbols = self.running.kernel.symbols();
        let address_of = |name: &str| Some(symbols.address_of(name)?.wrapping_add(slide));
        let memory = &self.running.planter;
        let place = module.types(memory, paging, kernel, address_of);
        if read == Read::FromList && module.state() == ModuleState::Coming {
            return place
                .and_then(|place| place.read(memory, paging, kernel))
                .ok();
        }
        let refused = |error| {
            let text = format!(
                "arguments in the module {} have no types: {}",
                module.name(),
                chain(&error)
            );
            self.reporter.note(None, text);
        };
        let read = |place: ModuleTypes| place.read(memory, paging, kernel);
        self.types.get(module.address(), place, read, refused)
    }

    /// Binds `probe` to its site.
    fn place(&self, probe: &Probe, found: FoundSite) {
        probe.set_signature(found.signature);
        probe.set_record(found.record);
        match found.place {
            Ok(place) => {
                probe.set_place(Some(place));
                probe.status.set_state(ProbeState::Pending, None);
            }
            Err(refusal) => self.probes.refuse(probe, refusal.to_string()),
        }
    }

    fn lose_place(&self, probe: &Arc<Probe>) {
        probe.set_place(None);
        probe.set_signature(None);
        probe.set_record(None);
        probe.status.set_state(ProbeState::Gone, None);
    }

    /// Removes the probes in init text: the init functions of live modules have run, and the text is about to be freed.
    fn module_init_is_freed(&self) {
        let known = self.running.modules.lock().clone();
        for module in known.values().filter(|module| module.has_init()) {
            let state = self.running.read_module(|modules, paging| {
                modules.read_one(&self.running.planter, paging, module.address())
            });
            if matches!(&state, Ok(Some(now)) if now.state() == ModuleState::Coming) {
                continue;
            }
            if let (Ok(Some(now)), Some(paging)) = (state, self.running.modules.paging()) {
                // Other modules may be loaded at the address of the init text.
                let now = LoadedModule::new(now, &self.running.planter, &paging);
                let tracepoints = module.tracepoints().cloned();
                let now = Arc::new(now.with_tracepoints(tracepoints));
                if self.keep(&now) {
                    self.bind_watches(&now);
                }
            }
            for probe in self.probes.list.load().iter() {
                let in_init =
                    |place: &Place| place.init && place.module() == Some(module.address());
                if is_bound_to(probe, in_init) {
                    self.lose_place(probe);
                }
            }
            self.following
                .lose_return_sites(|site| !module.is_init(site));
        }
    }

    /// Removes the probes in a module: nothing of the module runs any more, and the memory is about to be freed.
    fn module_is_unloaded(&self, address: Gva) {
        let Some(module) = self.running.modules.lock().remove(&address) else {
            return;
        };
        self.types.forget(address);
        for probe in self.probes.list.load().iter() {
            if is_bound_to(probe, |place| place.module() == Some(address)) {
                self.lose_place(probe);
            }
        }
        self.following
            .lose_return_sites(|site| !module.holds_code(site));
    }
}

/// Whether `probe` need not be told that it has no place in a module of the guest's list: the module's init function has run, and its text is gone. Another
/// build of a module may have that text: a probe with a build is refused there, also if an earlier load had the probe's build.
pub(crate) fn is_expected(probe: &Probe, problem: &ResolveProblem) -> bool {
    probe.status.state() == ProbeState::Gone
        && !probe.is_watch()
        && !matches!(problem, ResolveProblem::OtherBuild { .. })
}
