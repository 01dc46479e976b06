//! The types of a loaded module.
//!
//! `btf_data` in `struct module` is of no use: the section is not allocated, and the kernel frees the copy in memory before the module's
//! init function runs. The kernel keeps a checked copy of its own in the list `btf_modules`, with the numbers of types and strings
//! relocated to the running kernel's, also for a module built against the types of another kernel (`.BTF.base`).

use address::Gva;
use thiserror::Error;

use super::{Module, ModulesError, list::pointer, view::View};
use crate::btf::{Btf, BtfError, Slot, StructId};
use crate::{PagingState, PhysMemory};

/// The kernel's list head.
const LIST: &str = "btf_modules";
/// As many as modules.
const MAX_ENTRIES: usize = 4096;
/// The types of the largest modules, of graphics cards, take 2 MiB.
const MAX_TYPES_BYTES: u64 = 8 << 20;

/// Why the types of a module are not known.
#[derive(Clone, Debug, Error)]
pub enum ModuleTypesError {
    /// The kernel is older than 5.11, or built without the option.
    #[error("the kernel keeps no type information of modules (CONFIG_DEBUG_INFO_BTF_MODULES)")]
    NotKept,
    /// The module is not on the kernel's list.
    #[error("the kernel has no type information of the module {module}")]
    NoTypes {
        /// The module's name.
        module: String,
    },
    /// Guest memory is not as expected.
    #[error(transparent)]
    Memory(#[from] ModulesError),
    /// The types continue those of another kernel.
    #[error(
        "the types of the module {module} begin with the number {found}, and the kernel's end with {kernel}"
    )]
    OtherBase {
        /// The module's name.
        module: String,
        /// The number in the module's types.
        found: u64,
        /// The number of the kernel's types.
        kernel: u64,
    },
    /// The bytes are not BTF.
    #[error("cannot use the types of a module")]
    Btf(#[from] BtfError),
}

/// The offsets in `struct btf_module` and `struct btf`.
#[derive(Clone, Copy, Debug)]
struct TypesLayout {
    entry_bytes: usize,
    next: Slot,
    module: Slot,
    btf: Slot,
    btf_bytes: usize,
    id: Slot,
    data: Slot,
    data_size: Slot,
    start_id: Slot,
}

impl TypesLayout {
    /// `None` if the kernel does not keep types of modules.
    fn from_btf(kernel: &Btf) -> Option<Self> {
        let entry = kernel.struct_named("btf_module")?;
        let btf = kernel.struct_named("btf")?;
        Some(Self {
            entry_bytes: size(kernel, entry)?,
            next: Slot::find(kernel, entry, "list.next")?,
            module: Slot::find(kernel, entry, "module")?,
            btf: Slot::find(kernel, entry, "btf")?,
            btf_bytes: size(kernel, btf)?,
            id: Slot::find(kernel, btf, "id")?,
            data: Slot::find(kernel, btf, "data")?,
            data_size: Slot::find(kernel, btf, "data_size")?,
            start_id: Slot::find(kernel, btf, "start_id")?,
        })
    }
}

fn size(btf: &Btf, id: StructId) -> Option<usize> {
    usize::try_from(btf.size_of(id)?)
        .ok()
        .filter(|&bytes| bytes <= 1 << 12)
}

/// Where the kernel keeps the types of a module. If the place is the same, so are the types: no two loads have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleTypes {
    /// The address of the `struct btf`.
    at: Gva,
    /// The number that the kernel has given to the types.
    id: u64,
    data: Gva,
    size: u64,
}

impl Module {
    /// Finds the module's types. `kernel` has the kernel's, and `address_of` gives the run-time addresses of the kernel's symbols.
    ///
    /// # Errors
    ///
    /// If the kernel has no types of the module, or they cannot be found.
    pub fn types(
        &self,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        kernel: &Btf,
        address_of: impl FnOnce(&str) -> Option<Gva>,
    ) -> Result<ModuleTypes, ModuleTypesError> {
        let layout = TypesLayout::from_btf(kernel).ok_or(ModuleTypesError::NotKept)?;
        let head = address_of(LIST).ok_or(ModuleTypesError::NotKept)?;
        let view = View::new(memory, paging);
        let mut link = pointer(&view, head)?;
        for _ in 0..MAX_ENTRIES {
            if link == head {
                let module = self.name.clone();
                return Err(ModuleTypesError::NoTypes { module });
            }
            let entry = Gva(link.0.wrapping_sub(layout.next.at() as u64));
            let bytes = view.bytes("the types of a module", entry, layout.entry_bytes)?;
            if layout.module.read(&bytes) == Some(self.address.0) {
                let btf = Gva(layout.btf.read(&bytes).unwrap_or_default());
                return self.types_at(&view, &layout, btf, kernel);
            }
            link = Gva(layout.next.read(&bytes).unwrap_or_default());
        }
        Err(ModulesError::Endless { limit: MAX_ENTRIES }.into())
    }

    /// The types of the `struct btf` at `at`.
    fn types_at(
        &self,
        view: &View<'_>,
        layout: &TypesLayout,
        at: Gva,
        kernel: &Btf,
    ) -> Result<ModuleTypes, ModuleTypesError> {
        let bytes = view.bytes("the types of a module", at, layout.btf_bytes)?;
        let number = |slot: Slot| slot.read(&bytes).unwrap_or_default();
        // `void`, the number 0, counts.
        let expected = kernel.len() as u64 + 1;
        let found = number(layout.start_id);
        if found != expected {
            let module = self.name.clone();
            let kernel = expected - 1;
            return Err(ModuleTypesError::OtherBase {
                module,
                found,
                kernel,
            });
        }
        Ok(ModuleTypes {
            at,
            id: number(layout.id),
            data: Gva(number(layout.data)),
            size: number(layout.data_size),
        })
    }
}

impl ModuleTypes {
    /// Types with the number `id`, nowhere.
    #[cfg(any(test, feature = "fuzzing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn synthetic(id: u64) -> Self {
        let (at, data) = (Gva(0), Gva(0));
        Self {
            at,
            id,
            data,
            size: 0,
        }
    }

    /// Reads the types on top of the kernel's, `kernel`.
    ///
    /// # Errors
    ///
    /// If the memory is not there, or the bytes are no types.
    pub fn read(
        self,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        kernel: &Btf,
    ) -> Result<Btf, ModuleTypesError> {
        let len = usize::try_from(self.size).ok();
        let len = len.filter(|_| self.size <= MAX_TYPES_BYTES);
        let len = len.ok_or(BtfError::TooLarge { bytes: self.size })?;
        let view = View::new(memory, paging);
        let blob = view.bytes("the types of a module", self.data, len)?;
        Ok(kernel.parse_module(blob)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;
    use crate::modules::Modules;
    use crate::modules::synthetic::{COMING, FORMS, Form, Guest, LIVE};

    fn read(guest: &Guest, module: Gva) -> Result<Btf, ModuleTypesError> {
        let (kernel, paging) = (guest.btf(), Guest::paging());
        let modules = Modules::new(&kernel).expect("types");
        let module = modules
            .read_one(&guest.memory, &paging, module)
            .expect("a module");
        let address_of = |name: &str| guest.kernel.address_of(name);
        let types = module.types(&guest.memory, &paging, &kernel, address_of)?;
        types.read(&guest.memory, &paging, &kernel)
    }

    fn blob(guest: &Guest, function: &str) -> Vec<u8> {
        let mut blob = Blob::on(&guest.btf());
        let int = blob.int("int", 4);
        blob.function(function, int, &[("device", int)]);
        blob.finish()
    }

    #[test]
    fn module_has_the_types_of_its_entry_in_the_list() {
        for form in FORMS {
            let mut guest = Guest::new(form);
            let modules = [LIVE, COMING].map(|shape| guest.module(shape));
            for (module, function) in modules.into_iter().zip(["one", "two"]) {
                let blob = blob(&guest, function);
                guest.types_of(module, &blob);
            }
            let types = modules.map(|module| read(&guest, module).expect("types"));
            assert!(types[0].func_proto("one").is_some() && types[0].func_proto("two").is_none());
            assert!(types[1].func_proto("two").is_some());
            assert!(types[1].struct_named("module").is_some());
        }
    }

    #[test]
    fn module_without_types_is_an_error() {
        let mut guest = Guest::new(Form::Memory);
        let module = guest.module(LIVE);
        let error = read(&guest, module).expect_err("none");
        assert_eq!(
            error.to_string(),
            "the kernel has no type information of the module steady"
        );
    }

    #[test]
    fn types_on_another_base_are_refused() {
        let mut guest = Guest::new(Form::Memory);
        let module = guest.module(LIVE);
        let blob = blob(&guest, "one");
        let btf = guest.types_of(module, &blob);
        guest.put32(btf.wrapping_add(12), 7);
        let error = read(&guest, module).expect_err("another base");
        assert!(
            matches!(error, ModuleTypesError::OtherBase { found: 7, .. }),
            "{error}"
        );
    }

    #[test]
    fn false_list_ends_the_look_up() {
        let mut guest = Guest::new(Form::Memory);
        let module = guest.module(LIVE);
        let other = guest.module(COMING);
        let blob = blob(&guest, "one");
        let btf = guest.types_of(other, &blob);
        // The entry behind the `struct btf` points to itself.
        let entry = btf.wrapping_add(24);
        guest.put(entry, &entry.0.to_le_bytes());
        let error = read(&guest, module).expect_err("endless");
        assert!(
            matches!(
                error,
                ModuleTypesError::Memory(ModulesError::Endless { .. })
            ),
            "{error}"
        );
        // A size beyond any module's.
        guest.put32(btf.wrapping_add(8), u32::MAX);
        let error = read(&guest, other).expect_err("too large");
        assert!(
            matches!(error, ModuleTypesError::Btf(BtfError::TooLarge { .. })),
            "{error}"
        );
    }
}
