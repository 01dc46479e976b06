//! The loaded modules, as the kernel lists them in `/proc/modules`.

use std::collections::HashMap;

use address::Gva;
use introspect::{BuildId, Module, ModuleState, ModuleUsage, Modules, ModulesError};
use thiserror::Error;

use crate::KernelView;
use crate::reads::{Reads, ReadsError};

/// The kernel's list head.
const LIST: &str = "modules";
/// A distribution's kernel has some thousand modules, and rarely two hundred of them loaded.
const MAX_MODULES: usize = 4096;
/// The users of all modules together.
const MAX_USERS: usize = 16 << 10;
/// What an answer may read: a `struct module` has 1 KiB.
const MAX_READ_BYTES: usize = 32 << 20;

/// Why the modules could not be listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModuleListError {
    /// The kernel has no BTF.
    #[error("the kernel has no type information (BTF), and modules are found by their types")]
    NoTypes,
    /// The list has no name in the symbol table.
    #[error("the kernel's symbol table has no `{LIST}`: the kernel is built without modules")]
    NoList,
    /// The types have no modules, or the bytes are no module's.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// A part of the list is not in memory.
    #[error("cannot follow the list of modules to {at}")]
    Unreadable {
        /// The address of the list's link.
        at: Gva,
        /// The failed read.
        source: ReadsError,
    },
    /// The list does not return to the head.
    #[error("the list of modules does not end within {MAX_MODULES} entries")]
    Endless,
}

/// A module on the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModule {
    /// The name.
    pub name: String,
    /// The module's state.
    pub state: ModuleState,
    /// The size of code and data in memory in bytes, as the kernel counts.
    pub size_bytes: u64,
    /// The first address of the module's code.
    pub address: Option<Gva>,
    /// The number of references, without the kernel's own; `None` if the kernel cannot unload modules.
    pub references: Option<i32>,
    /// The kernel cannot unload this module.
    pub permanent: bool,
    /// The modules that use this module, in the order of `/proc/modules`.
    pub users: Vec<String>,
    /// The linker's digest; `None` if the module has none, or the kernel keeps no notes of modules.
    pub build_id: Option<BuildId>,
}

/// A module that the list has, before the names of its users are known.
#[derive(Debug)]
struct Found {
    module: Module,
    usage: Option<ModuleUsage>,
    build_id: Option<BuildId>,
}

/// A reader of the list of modules. Made while the kernel runs; reads while the kernel is paused.
#[derive(Debug)]
pub struct ModuleList {
    modules: Modules,
}

impl ModuleList {
    /// Takes the layout of modules from the types of `view`.
    ///
    /// # Errors
    ///
    /// If the types do not describe modules.
    pub fn new(view: &KernelView<'_>) -> Result<Self, ModuleListError> {
        let types = view.types().ok_or(ModuleListError::NoTypes)?;
        let modules = Modules::new(types)?;
        Ok(Self { modules })
    }

    /// All modules on the kernel's list except unformed modules, the latest first.
    ///
    /// The kernel lets processors read the list without a lock, so the list is whole at each moment of a paused kernel.
    ///
    /// # Errors
    ///
    /// If the list is broken.
    pub fn read(&self, view: &KernelView<'_>) -> Result<Vec<ListedModule>, ModuleListError> {
        let reads = Reads::new(view, MAX_READ_BYTES);
        let head = view.address_of(LIST).ok_or(ModuleListError::NoList)?;
        let mut found = Vec::new();
        let mut link = word(&reads, head)?;
        for _ in 0..MAX_MODULES {
            if link == head {
                return self.listed(&reads, found);
            }
            let address = self.modules.at_link(link);
            let bytes = reads
                .bytes(address, self.modules.struct_bytes())
                .map_err(|source| ModuleListError::Unreadable { at: link, source })?;
            let module = self.modules.describe(address, &bytes)?;
            let usage = self.modules.usage(address, &bytes);
            link = self.modules.next_link(&bytes);
            if module.state() != ModuleState::Unformed {
                let read = |at, len| reads.bytes(at, len).ok();
                let build_id = self.modules.build_id(&bytes, &module, read);
                found.push(Found {
                    module,
                    usage,
                    build_id,
                });
            }
        }
        Err(ModuleListError::Endless)
    }

    fn listed(
        &self,
        reads: &Reads<'_>,
        found: Vec<Found>,
    ) -> Result<Vec<ListedModule>, ModuleListError> {
        let by_address = found.iter().map(|found| {
            let module = &found.module;
            (module.address(), module.name().to_owned())
        });
        let names: HashMap<Gva, String> = by_address.collect();
        let mut users_left = MAX_USERS;
        let mut listed = Vec::new();
        for Found {
            module,
            usage,
            build_id,
        } in found
        {
            let users = match &usage {
                Some(usage) => users(reads, usage, &names, &mut users_left)?,
                None => Vec::new(),
            };
            let regions = module.regions();
            let sizes = regions
                .iter()
                .map(|region| region.range.end.0 - region.range.start.0);
            let text = regions.iter().find(|region| region.kind.is_text());
            listed.push(ListedModule {
                name: module.name().to_owned(),
                state: module.state(),
                size_bytes: sizes.fold(0, u64::saturating_add),
                address: text.map(|region| region.range.start),
                references: usage.map(|usage| usage.references),
                permanent: usage.is_some_and(|usage| usage.permanent),
                users,
                build_id,
            });
        }
        Ok(listed)
    }
}

/// The names of the modules on a module's list of users.
fn users(
    reads: &Reads<'_>,
    usage: &ModuleUsage,
    names: &HashMap<Gva, String>,
    left: &mut usize,
) -> Result<Vec<String>, ModuleListError> {
    let mut users = Vec::new();
    let mut link = usage.first;
    while link != usage.head {
        *left = left.checked_sub(1).ok_or(ModuleListError::Endless)?;
        let user = word(reads, Gva(link.0.wrapping_add_signed(usage.to_user)))?;
        // A user that is about to go has left the list.
        users.extend(names.get(&user).cloned());
        link = word(reads, link)?;
    }
    Ok(users)
}

fn word(reads: &Reads<'_>, at: Gva) -> Result<Gva, ModuleListError> {
    let mut bytes = [0; 8];
    reads
        .fill(at, &mut bytes)
        .map_err(|source| ModuleListError::Unreadable { at, source })?;
    Ok(Gva(u64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests;
