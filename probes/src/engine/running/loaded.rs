//! The loaded modules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::Gva;
use arc_swap::ArcSwapOption;
use introspect::PagingState;

use crate::module::LoadedModule;

/// The most modules, as many as the kernel's list is followed.
const MAX_MODULES: usize = 4096;
/// The most symbols of all modules: some 500 MB. Two hundred real modules have half a million.
const MAX_SYMBOLS: usize = 1 << 22;

/// The loaded modules have come to a limit, which only a guest with false modules reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the guest has more than {MAX_MODULES} modules, or modules with more than {MAX_SYMBOLS} symbols: probes in further ones stay pending"
)]
pub(crate) struct TooManyModules;

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

    /// Keeps `module` in place of the last one at its address.
    ///
    /// # Errors
    ///
    /// If the modules have come to a limit; then nothing has changed.
    pub(crate) fn keep(&self, module: Arc<LoadedModule>) -> Result<(), TooManyModules> {
        let mut loaded = self.lock();
        let mut others = 0;
        let mut symbols = module.symbols().len();
        for other in loaded.values() {
            if other.address() != module.address() {
                others += 1;
                symbols += other.symbols().len();
            }
        }
        if others >= MAX_MODULES || symbols > MAX_SYMBOLS {
            return Err(TooManyModules);
        }
        loaded.insert(module.address(), module);
        Ok(())
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

#[cfg(test)]
mod tests {
    use introspect::Module;
    use text::testing::FakeMemory;
    use text::{PlantByte, Planter};

    use super::*;

    #[test]
    fn modules_come_to_a_limit_and_are_replaced_at_their_address() {
        let planter = Planter::new(Arc::new(FakeMemory::new(Vec::new())), PlantByte::Int3);
        let loaded = LoadedModules::default();
        let keep = |address: u64| {
            let module = Module::with_regions(Gva(address), "m", Vec::new());
            let module = LoadedModule::new(module, &planter, &PagingState::default());
            loaded.keep(Arc::new(module))
        };
        for address in 0..MAX_MODULES as u64 {
            assert_eq!(keep(address), Ok(()));
        }
        assert_eq!(keep(0), Ok(()));
        assert_eq!(keep(u64::MAX), Err(TooManyModules));
        assert_eq!(loaded.lock().len(), MAX_MODULES);
    }
}
