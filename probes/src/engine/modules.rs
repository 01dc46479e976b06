//! Probes in modules: pending until the module is loaded, gone when it is unloaded, and armed again when it returns.
//!
//! ```text
//!            do_init_module: bound to its place           do_free_init: those in init text
//!  pending ────────────────────────────────────▶ armed ─────────────────────────────────▶ gone
//!     ▲                                            │ free_module                            │
//!     └── gone, with nothing planted ◀─────────────┴── do_init_module: bound again ◀────────┘
//! ```
//!
//! The modules are read from the guest's memory through the kernel's own page tables, as they were when the first task
//! was about to run. They are watched only while there is a probe in one: the list is read anew when the first comes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use introspect::{Gva, Module, ModuleEvent, ModuleState, Modules, ModulesError, PagingState};

use super::Engine;
use crate::guest::{GuestError, Paused, Vcpu};
use crate::module::{LoadedModule, ModuleText};
use crate::registry::Probe;
use crate::resolve::{Refusal, ResolveError, Resolved, in_module};
use crate::{ProbeState, resolve::Place};

/// The modules that are loaded, while there are probes in any.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The kernel's page tables.
    paging: OnceLock<PagingState>,
    /// By the addresses of their `struct module`.
    loaded: Mutex<BTreeMap<Gva, Arc<LoadedModule>>>,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Gva, Arc<LoadedModule>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody watches them any more.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    /// The kernel's page tables, once they are known.
    pub(super) fn paging(&self) -> Option<PagingState> {
        self.paging.get().copied()
    }

    fn keep(&self, module: Arc<LoadedModule>) {
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

/// A module's probe needs its place to be found again.
fn is_bound_to(probe: &Probe, place: impl Fn(&Place) -> bool) -> bool {
    probe.in_module.is_some() && probe.place().is_some_and(|at| place(&at))
}

impl Engine {
    /// Whether any probe is in a module.
    pub(super) fn watches_modules(&self) -> bool {
        self.probes
            .load()
            .iter()
            .any(|probe| probe.in_module.is_some())
    }

    /// The first task is about to run: the page tables of this vCPU are the kernel's own.
    pub(super) fn keep_page_tables(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let paging = vcpu.system_state()?.paging;
        self.modules.paging.get_or_init(|| paging);
        Ok(())
    }

    /// Something happens to the module that the vCPU has the address of, or to all of them.
    pub(super) fn on_module_event(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        event: ModuleEvent,
    ) -> Result<(), GuestError> {
        // What has been recorded until now was at places that are about to go.
        self.take_out_records();
        // By the convention for calls: where `ModuleEvent::module_register` says.
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

    /// Reads all modules anew: nobody has watched them come and go.
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
    }

    /// `None` while no module can have been loaded yet.
    fn read_module<T>(
        &self,
        read: impl FnOnce(&Modules, &PagingState) -> Result<T, ModulesError>,
    ) -> Result<Option<T>, ModulesError> {
        match (self.kernel.modules(), self.modules.paging.get()) {
            (Ok(modules), Some(paging)) => read(modules, paging).map(Some),
            _ => Ok(None),
        }
    }

    fn module_is_loaded(&self, module: &Module) {
        let text = module.regions().to_vec();
        self.return_sites
            .allow(|site| text.iter().any(|region| region.range.contains(&site)));
        self.bind(module);
    }

    /// Finds the places of the probes in `module`.
    fn bind(&self, module: &Module) {
        let Some(paging) = self.modules.paging.get() else {
            return;
        };
        let module = Arc::new(LoadedModule::new(module.clone(), &self.planter, paging));
        self.modules.keep(Arc::clone(&module));
        let text = ModuleText {
            module: &module,
            planter: &self.planter,
        };
        let before = self.probes.load_full();
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
        for probe in before.iter() {
            after.push(Arc::clone(probe));
            let Some(spec) = probe.in_module.as_ref().filter(|_| is_meant(probe)) else {
                continue;
            };
            match in_module(&module, &text, spec) {
                // Its init function has run.
                Err(_) if probe.state() == ProbeState::Gone => (),
                Err(problem) => {
                    let spec = spec.to_string();
                    self.refuse(probe, ResolveError { spec, problem }.to_string());
                }
                Ok(found) if probe.is_glob() => {
                    let missing = |found: &Resolved| {
                        !before
                            .iter()
                            .any(|known| known.id == probe.id && known.name == found.name)
                    };
                    for found in found.into_iter().filter(missing) {
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

    /// The init functions of live modules have run, and their text is about to be freed.
    fn module_init_is_freed(&self) {
        let known = self.modules.lock().clone();
        for module in known.values().filter(|module| module.has_init()) {
            let state = self.read_module(|modules, paging| {
                modules.read_one(&self.planter, paging, module.address())
            });
            if matches!(&state, Ok(Some(now)) if now.state() == ModuleState::Coming) {
                continue;
            }
            if let (Ok(Some(now)), Some(paging)) = (state, self.modules.paging.get()) {
                // Others may come to lie where its init text was.
                let now = LoadedModule::new(now, &self.planter, paging);
                self.modules.keep(Arc::new(now));
            }
            for probe in self.probes.load().iter() {
                let in_init = |place: &Place| place.init && place.module == Some(module.address());
                if is_bound_to(probe, in_init) {
                    self.lose_place(probe);
                }
            }
            self.return_sites.retain(|site| !module.is_init(site));
        }
    }

    /// Nothing of the module runs any more, and its memory is about to be freed.
    fn module_is_unloaded(&self, address: Gva) {
        let Some(module) = self.modules.lock().remove(&address) else {
            return;
        };
        for probe in self.probes.load().iter() {
            if is_bound_to(probe, |place| place.module == Some(address)) {
                self.lose_place(probe);
            }
        }
        self.return_sites.retain(|site| !module.holds_code(site));
    }
}
