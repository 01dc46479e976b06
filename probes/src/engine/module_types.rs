//! The types of a few modules, kept from one change of probes to the next: the guest waits while they are read.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use address::Gva;
use introspect::{Btf, ModuleTypes, ModuleTypesError};

/// The most modules whose types are kept: a guest may load thousands, with up to 8 MiB of types each.
const MAX_KEPT: usize = 8;

/// The types of the modules that were read last.
#[derive(Debug, Default)]
pub(crate) struct KeptTypes(Mutex<VecDeque<Kept>>);

#[derive(Debug)]
struct Kept {
    module: Gva,
    /// Where the types were; `None` if they were not found.
    place: Option<ModuleTypes>,
    types: Option<Btf>,
}

impl KeptTypes {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The types of `module`, which the guest has at `place`: those known from there, else `read`. Tells `refused` why there are none,
    /// once for a load.
    pub(crate) fn get(
        &self,
        module: Gva,
        place: Result<ModuleTypes, ModuleTypesError>,
        read: impl FnOnce(ModuleTypes) -> Result<Btf, ModuleTypesError>,
        refused: impl FnOnce(ModuleTypesError),
    ) -> Option<Btf> {
        let mut all = self.lock();
        let known_at = place.as_ref().ok().copied();
        let known = all.iter().find(|kept| kept.module == module);
        if let Some(known) = known.filter(|kept| kept.place == known_at) {
            return known.types.clone();
        }
        all.retain(|kept| kept.module != module);
        let types = place.and_then(read).map_err(refused).ok();
        all.truncate(MAX_KEPT - 1);
        all.push_front(Kept {
            module,
            place: known_at,
            types: types.clone(),
        });
        types
    }

    /// Forgets the types of a module that is loaded anew or has gone.
    pub(crate) fn forget(&self, module: Gva) {
        self.lock().retain(|kept| kept.module != module);
    }

    /// Forgets all types: nothing watches the modules any more.
    pub(crate) fn forget_all(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::synthetic::Blob;

    use super::*;

    #[test]
    fn missing_types_are_noted_once_for_a_load() {
        let kept = KeptTypes::default();
        let missing = |module| {
            let mut told = 0;
            let place = Err(ModuleTypesError::NotKept);
            let read = |_| panic!("there are none");
            assert!(kept.get(Gva(module), place, read, |_| told += 1).is_none());
            told
        };
        assert_eq!([missing(1), missing(1), missing(2)], [1, 0, 1]);
        kept.forget(Gva(1));
        assert_eq!([missing(1), missing(2)], [1, 0]);
    }

    #[test]
    fn types_are_read_again_from_another_place_alone() {
        let kept = KeptTypes::default();
        let read_from = |id| {
            let mut reads = 0;
            let read = |_| {
                reads += 1;
                Ok(Btf::parse(Blob::new().finish())?)
            };
            let place = ModuleTypes::synthetic(id);
            let types = kept.get(Gva(1), Ok(place), read, |error| panic!("{error}"));
            assert!(types.is_some());
            reads
        };
        assert_eq!([read_from(7), read_from(7), read_from(8)], [1, 0, 1]);
    }

    #[test]
    fn few_types_are_kept() {
        let kept = KeptTypes::default();
        for module in 0..100 {
            let place = Err(ModuleTypesError::NotKept);
            let read = |_| panic!("there are none");
            kept.get(Gva(module), place, read, |_| ());
        }
        assert_eq!(kept.lock().len(), MAX_KEPT);
    }
}
