//! Modules with their symbols, retained from one stack to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::Gva;
use introspect::Module;

/// The most modules whose symbols are kept.
pub(super) const MAX_MODULES: usize = 64;
/// The most symbols that are kept: some 64 MB. The largest module has 60 000.
const MAX_SYMBOLS: usize = 1 << 19;

/// Modules with their symbols, by the addresses of their `struct module`. Any thread may add and look up modules.
#[derive(Debug, Default)]
pub struct NamedModules(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    modules: HashMap<Gva, Arc<Module>>,
    symbols: usize,
}

impl NamedModules {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `module` with its symbols, if they are known.
    pub(super) fn known(&self, module: &Module) -> Option<Arc<Module>> {
        let kept = self.lock();
        let known = kept.modules.get(&module.address());
        known.filter(|known| known.is_same_load(module)).cloned()
    }

    /// Keeps `module` with its symbols.
    pub(super) fn keep(&self, module: Arc<Module>) {
        let symbols = module.symbols().len();
        self.lock().keep(module, symbols);
    }
}

impl Kept {
    /// Keeps `module` with this number of symbols; drops the others if there are too many.
    fn keep(&mut self, module: Arc<Module>, symbols: usize) {
        if self.modules.len() >= MAX_MODULES || self.symbols + symbols > MAX_SYMBOLS {
            *self = Self::default();
        }
        self.symbols += symbols;
        self.modules.insert(module.address(), module);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_symbols_and_modules_have_limits() {
        let mut kept = Kept::default();
        let mut number = 0;
        let mut keep = |kept: &mut Kept, symbols| {
            number += 1;
            let module = Module::with_regions(Gva(number), "m", Vec::new());
            kept.keep(Arc::new(module), symbols);
            (kept.modules.len(), kept.symbols)
        };
        assert_eq!(keep(&mut kept, MAX_SYMBOLS / 2), (1, MAX_SYMBOLS / 2));
        assert_eq!(keep(&mut kept, MAX_SYMBOLS / 2), (2, MAX_SYMBOLS));
        assert_eq!(keep(&mut kept, 1), (1, 1));
        for count in 2..=MAX_MODULES {
            assert_eq!(keep(&mut kept, 0), (count, 1));
        }
        assert_eq!(keep(&mut kept, 0), (1, 0));
    }
}
