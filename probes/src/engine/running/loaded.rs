//! The loaded modules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::Gva;
use arc_swap::ArcSwapOption;
use introspect::PagingState;

use crate::module::LoadedModule;

/// The loaded modules, while any module has probes.
#[derive(Debug, Default)]
pub(crate) struct LoadedModules {
    /// The kernel's page tables.
    pub(crate) paging: ArcSwapOption<PagingState>,
    /// By the addresses of their `struct module`.
    loaded: Mutex<BTreeMap<Gva, Arc<LoadedModule>>>,
}

impl LoadedModules {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<Gva, Arc<LoadedModule>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any module is known.
    pub(crate) fn is_kept(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Forgets the modules: nothing watches the modules any more.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// Forgets the modules and the page tables: the kernel does not run any more.
    pub(crate) fn forget_all(&self) {
        self.forget();
        self.paging.store(None);
    }

    /// The kernel's page tables, once they are known.
    pub(crate) fn paging(&self) -> Option<PagingState> {
        self.paging.load().as_deref().copied()
    }

    pub(crate) fn keep(&self, module: Arc<LoadedModule>) {
        self.lock().insert(module.address(), module);
    }

    pub(crate) fn at(&self, address: Gva) -> Option<Arc<LoadedModule>> {
        self.lock().get(&address).cloned()
    }

    /// The module whose code is at `at`.
    pub(crate) fn holding(&self, at: Gva) -> Option<Arc<LoadedModule>> {
        self.lock()
            .values()
            .find(|module| module.holds_code(at))
            .cloned()
    }
}
