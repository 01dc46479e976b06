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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use events::ProbeState;
use introspect::{Gva, Module, ModuleEvent, ModuleState, Modules, ModulesError, PagingState};
use text::{GuestError, Paused, Vcpu};

use super::Engine;
use crate::hit::DebugUse;
use crate::module::{LoadedModule, ModuleText};
use crate::registry::{Probe, ProbeId};
use crate::resolve::Place;
use crate::resolve::{ProbeNumber, Refusal, ResolveError, in_module};

/// The loaded modules, while any module has probes.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The kernel's page tables.
    paging: ArcSwapOption<PagingState>,
    /// By the addresses of their `struct module`.
    loaded: Mutex<BTreeMap<Gva, Arc<LoadedModule>>>,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Gva, Arc<LoadedModule>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any module is known.
    fn is_kept(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Forgets the modules: nothing watches the modules any more.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    /// Forgets the modules and the page tables: the kernel does not run any more.
    pub(super) fn forget_all(&self) {
        self.forget();
        self.paging.store(None);
    }

    /// The kernel's page tables, once they are known.
    pub(super) fn paging(&self) -> Option<PagingState> {
        self.paging.load().as_deref().copied()
    }

    pub(super) fn keep(&self, module: Arc<LoadedModule>) {
        self.lock().insert(module.address(), module);
    }

    pub(super) fn at(&self, address: Gva) -> Option<Arc<LoadedModule>> {
        self.lock().get(&address).cloned()
    }

    /// The module whose code is at `at`.
    pub(super) fn holding(&self, at: Gva) -> Option<Arc<LoadedModule>> {
        self.lock()
            .values()
            .find(|module| module.holds_code(at))
            .cloned()
    }
}

/// Whether `place` holds for the site of a module's probe. The site must be found anew after a change of the module.
fn is_bound_to(probe: &Probe, place: impl Fn(&Place) -> bool) -> bool {
    probe.in_module.is_some() && probe.place().is_some_and(|at| place(&at))
}

impl Engine {
    /// Whether followed calls return to a module.
    pub(super) fn returns_to_modules(&self) -> bool {
        self.located.get().is_some_and(|located| {
            let (image, slide) = (self.kernel.image(), located.slide.cast_unsigned());
            let running = image.start.wrapping_add(slide)..image.end.wrapping_add(slide);
            self.return_sites.has_outside(&running)
        })
    }

    /// Ends the watch if no plant can be in a module any more.
    pub(super) fn forget_unwatched_modules(&self, paused: &dyn Paused) {
        if self.watches_modules() || !self.modules.is_kept() {
            return;
        }
        self.modules.forget();
        // The kernel event probes for modules are not needed any more.
        if let Err(error) = self.change_sites(paused, &[]) {
            self.note(None, format!("modules are still watched: {error}"));
        }
    }

    /// Keeps the page tables of this vCPU as the kernel's own: the first task is about to run.
    pub(super) fn keep_page_tables(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let paging = vcpu.system_state()?.paging;
        if self.modules.paging().is_none() {
            self.modules.paging.store(Some(Arc::new(paging)));
        }
        Ok(())
    }

    /// Handles an event of the module whose address the vCPU holds, or of all modules.
    pub(super) fn on_module_event(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        event: ModuleEvent,
    ) -> Result<(), GuestError> {
        // The records belong to sites that are about to go.
        self.take_out_records();
        // The first argument of the call: see `ModuleEvent::module_register`.
        let address = Gva(vcpu.regs()?.rdi);
        match event {
            ModuleEvent::Loaded => match self
                .read_module(|modules, paging| modules.read_one(&self.planter, paging, address))
            {
                Ok(Some(module)) => self.module_is_loaded(&module),
                Ok(None) => return Ok(()),
                Err(error) => self.note(None, format!("a module cannot be read: {error}")),
            },
            ModuleEvent::InitFreed => self.module_init_is_freed(),
            ModuleEvent::Unloading => self.module_is_unloaded(address),
        }
        if let Err(error) = self.reconcile(paused) {
            match event {
                ModuleEvent::Loaded => self.refuse_pending(&error),
                _ => self.note(None, format!("plants in a module stay: {error}")),
            }
        }
        Ok(())
    }

    /// Reads all modules anew, after a time without a watch on modules.
    pub(super) fn look_for_modules(&self) {
        self.modules.forget();
        for probe in self.probes.load().iter() {
            if is_bound_to(probe, |_| true) {
                self.lose_place(probe);
            }
        }
        let Some(located) = self.located.get().filter(|_| self.watches_modules()) else {
            return;
        };
        let symbols = self.kernel.symbols().rebased(located.slide);
        let read =
            self.read_module(|modules, paging| modules.read(&self.planter, paging, &symbols));
        match read {
            Ok(modules) => {
                for module in modules.into_iter().flatten() {
                    if module.state() != ModuleState::Going {
                        self.bind(&module);
                    }
                }
            }
            Err(error) => self.note(None, format!("the modules cannot be read: {error}")),
        }
        // If a module is about to go, or is unreadable, the time of the release of its text is unknown.
        self.lose_return_sites(|site| {
            self.kernel.holds_code(located.linked(site)) || self.modules.holding(site).is_some()
        });
    }

    /// The known plants in memory that is neither text of the kernel nor of a module that the guest has loaded: once the guest has
    /// booted, there must be none. The guest's list of modules is behind while a vCPU loads or unloads a module.
    ///
    /// # Errors
    ///
    /// If the list of modules cannot be read.
    pub fn stray_plants(&self, _paused: &dyn Paused) -> Result<Vec<Gva>, ModulesError> {
        let Some(located) = self.located.get() else {
            return Ok(Vec::new());
        };
        let symbols = self.kernel.symbols().rebased(located.slide);
        let modules =
            self.read_module(|modules, paging| modules.read(&self.planter, paging, &symbols))?;
        let modules = modules.unwrap_or_default();
        let is_stray = |at: &Gva| {
            let linked = located.linked(*at);
            let in_kernel = self.kernel.holds_code(linked) && !self.kernel.is_init(linked);
            !in_kernel && !modules.iter().any(|module| module.holds_code(*at))
        };
        let table = self.table.load();
        let by_debug_register = table.debug.iter().flatten().map(DebugUse::plant);
        let plants = table.plants().chain(by_debug_register);
        Ok(plants.map(|plant| plant.at).filter(is_stray).collect())
    }

    /// Reads modules by `read`; `None` while no module can have been loaded yet.
    fn read_module<T>(
        &self,
        read: impl FnOnce(&Modules, &PagingState) -> Result<T, ModulesError>,
    ) -> Result<Option<T>, ModulesError> {
        match (self.kernel.modules(), self.modules.paging()) {
            (Ok(modules), Some(paging)) => read(modules, &paging).map(Some),
            _ => Ok(None),
        }
    }

    fn module_is_loaded(&self, module: &Module) {
        let text = module.regions().to_vec();
        let is_new = |site| text.iter().any(|region| region.range.contains(&site));
        self.return_sites.allow(is_new);
        self.forget_landings(|at| !is_new(at));
        self.bind(module);
    }

    /// Finds the sites of the probes in `module`.
    fn bind(&self, module: &Module) {
        let Some(paging) = self.modules.paging() else {
            return;
        };
        let module = Arc::new(LoadedModule::new(module.clone(), &self.planter, &paging));
        self.modules.keep(Arc::clone(&module));
        let text = ModuleText {
            module: &module,
            planter: &self.planter,
        };
        let before = self.probes.load_full();
        // The known matches of each glob.
        let known: BTreeSet<(ProbeId, &str)> = before
            .iter()
            .filter(|probe| probe.in_module.is_some())
            .map(|probe| (probe.id, &*probe.name))
            .collect();
        let is_meant = |probe: &Probe| {
            let spec = probe.in_module.as_ref();
            spec.and_then(|spec| spec.module.as_deref()) == Some(module.name())
        };
        if before.iter().any(|probe| is_meant(probe)) {
            for unread in module.unread() {
                let text = format!("part of the module {}: {unread}", module.name());
                self.note(None, text);
            }
        }
        let mut after = Vec::with_capacity(before.len());
        let mut number = ProbeNumber::new(before.len());
        for probe in before.iter() {
            after.push(Arc::clone(probe));
            let Some(spec) = probe.in_module.as_ref().filter(|_| is_meant(probe)) else {
                continue;
            };
            match in_module(&module, &text, spec) {
                // The module's init function has run.
                Err(_) if probe.state() == ProbeState::Gone => (),
                Err(problem) => {
                    let spec = spec.to_string();
                    self.refuse(probe, ResolveError { spec, problem }.to_string());
                }
                Ok(found) if probe.is_glob() => {
                    let mut missing = found;
                    missing.retain(|found| !known.contains(&(probe.id, &*found.name)));
                    // The guest chooses the names, and may load modules again and again.
                    if let Err(error) = number.add(spec, missing.len()) {
                        self.refuse(probe, error.to_string());
                        continue;
                    }
                    for found in missing {
                        let Ok(spec) = found.name.parse() else {
                            continue;
                        };
                        let matched = probe.matched(&found.name).awaiting(spec);
                        self.place(&matched, found.place);
                        after.push(Arc::new(matched));
                    }
                }
                Ok(found) => {
                    for found in found {
                        self.place(probe, found.place);
                    }
                }
            }
        }
        drop(known);
        if after.len() != before.len() {
            self.probes.store(Arc::new(after));
        }
    }

    fn place(&self, probe: &Probe, place: Result<Place, Refusal>) {
        match place {
            Ok(place) => {
                probe.set_place(Some(place));
                probe.set_state(ProbeState::Pending, None);
            }
            Err(refusal) => self.refuse(probe, refusal.to_string()),
        }
    }

    fn lose_place(&self, probe: &Arc<Probe>) {
        probe.set_place(None);
        probe.set_state(ProbeState::Gone, None);
    }

    /// Removes the probes in init text: the init functions of live modules have run, and the text is about to be freed.
    fn module_init_is_freed(&self) {
        let known = self.modules.lock().clone();
        for module in known.values().filter(|module| module.has_init()) {
            let state = self.read_module(|modules, paging| {
                modules.read_one(&self.planter, paging, module.address())
            });
            if matches!(&state, Ok(Some(now)) if now.state() == ModuleState::Coming) {
                continue;
            }
            if let (Ok(Some(now)), Some(paging)) = (state, self.modules.paging()) {
                // Other modules may be loaded at the address of the init text.
                let now = LoadedModule::new(now, &self.planter, &paging);
                self.modules.keep(Arc::new(now));
            }
            for probe in self.probes.load().iter() {
                let in_init = |place: &Place| place.init && place.module == Some(module.address());
                if is_bound_to(probe, in_init) {
                    self.lose_place(probe);
                }
            }
            self.lose_return_sites(|site| !module.is_init(site));
        }
    }

    /// Removes the probes in a module: nothing of the module runs any more, and the memory is about to be freed.
    fn module_is_unloaded(&self, address: Gva) {
        let Some(module) = self.modules.lock().remove(&address) else {
            return;
        };
        for probe in self.probes.load().iter() {
            if is_bound_to(probe, |place| place.module == Some(address)) {
                self.lose_place(probe);
            }
        }
        self.lose_return_sites(|site| !module.holds_code(site));
    }
}
