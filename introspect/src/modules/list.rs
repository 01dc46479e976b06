//! Walks the kernel's list of modules from the head.

use address::Gva;

use super::{
    Module, ModuleState, ModuleUsage, ModulesError,
    layout::{ModuleLayout, Table},
    sites,
    symbols::Symtab,
    view::View,
};
use crate::tracepoints::{ModuleTables, TableAt};
use crate::{Btf, BuildId, PagingState, PhysMemory, SymbolTable};

/// The kernel's list head.
const LIST: &str = "modules";
/// A distribution's kernel has some thousand modules, and rarely two hundred of them loaded.
const MAX_MODULES: usize = 4096;

/// A reader of a guest's modules. Made once for a kernel.
#[derive(Clone, Debug)]
pub struct Modules {
    layout: ModuleLayout,
}

impl Modules {
    /// Takes the layout of modules from `btf`.
    ///
    /// # Errors
    ///
    /// If the kernel has no modules, or modules of an unknown shape.
    pub fn new(btf: &Btf) -> Result<Self, ModulesError> {
        Ok(Self {
            layout: ModuleLayout::from_btf(btf)?,
        })
    }

    /// All modules on the kernel's list except unformed modules, the latest first. `kernel` has the
    /// list's run-time address; `paging` is the state of any vCPU, or the kernel's own tables.
    ///
    /// A vCPU paused in the middle of a change to the list does no harm: the kernel allows other
    /// vCPUs to read the list without a lock.
    ///
    /// # Errors
    ///
    /// If the list is broken. Unreadable tables of a module are no error:
    /// [`unread`](Module::unread) of the module lists them.
    pub fn read(
        &self,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        kernel: &SymbolTable,
    ) -> Result<Vec<Module>, ModulesError> {
        let view = View::new(memory, paging);
        let head = kernel.address_of(LIST).ok_or(ModulesError::NoList)?;
        let mut modules = Vec::new();
        let mut link = pointer(&view, head)?;
        for _ in 0..MAX_MODULES {
            if link == head {
                return Ok(modules);
            }
            let address = self.at_link(link);
            let bytes = self.bytes(&view, address)?;
            if self.state(&bytes, address)? != ModuleState::Unformed {
                modules.push(self.module(&view, address, &bytes)?);
            }
            link = self.next_link(&bytes);
        }
        Err(ModulesError::Endless { limit: MAX_MODULES })
    }

    /// The module with the `struct module` at `address`, on the list or not.
    ///
    /// # Errors
    ///
    /// If no module is at `address`.
    pub fn read_one(
        &self,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        address: Gva,
    ) -> Result<Module, ModulesError> {
        let view = View::new(memory, paging);
        let bytes = self.bytes(&view, address)?;
        self.module(&view, address, &bytes)
    }

    /// The tables of tracepoints, jump labels and static calls of the module at `address`.
    ///
    /// # Errors
    ///
    /// If the `struct module` cannot be read.
    pub fn tracepoint_tables(
        &self,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        address: Gva,
    ) -> Result<ModuleTables, ModulesError> {
        let bytes = self.bytes(&View::new(memory, paging), address)?;
        let layout = &self.layout;
        let table = |table: Option<Table>| table.map_or(TableAt::default(), |it| it.read(&bytes));
        Ok(ModuleTables {
            tracepoints: table(layout.tracepoints),
            events: table(layout.events),
            labels: table(layout.jump_labels),
            static_calls: table(layout.static_calls),
        })
    }

    /// The size of `struct module` in bytes.
    #[must_use]
    pub fn struct_bytes(&self) -> usize {
        self.layout.size
    }

    /// The address of the `struct module` with the list's link at `link`.
    #[must_use]
    pub fn at_link(&self, link: Gva) -> Gva {
        // `next` is the first word of a link.
        Gva(link.0.wrapping_sub(self.layout.next.at() as u64))
    }

    /// The link of the list's next entry, from the bytes of a `struct module`; 0 if the bytes are too
    /// few.
    #[must_use]
    pub fn next_link(&self, bytes: &[u8]) -> Gva {
        Gva(self.layout.next.read(bytes).unwrap_or_default())
    }

    /// The module at `address`, from the bytes of the `struct module`: the name, the state and the
    /// parts, without symbols, sites and build-id.
    ///
    /// # Errors
    ///
    /// If the bytes are no module's.
    pub fn describe(&self, address: Gva, bytes: &[u8]) -> Result<Module, ModulesError> {
        let why = "it has no name";
        let name = name(bytes.get(self.layout.name.clone()).unwrap_or_default())
            .ok_or(ModulesError::NotAModule { address, why })?;
        Ok(Module {
            address,
            name,
            state: self.state(bytes, address)?,
            regions: self.layout.regions(bytes),
            symbols: Vec::new(),
            sites: Vec::new(),
            unread: Vec::new(),
            unwind_rules: self.layout.unwind_rules(bytes),
            build_id: None,
        })
    }

    /// How the module at `address` is in use, from the bytes of the `struct module`; `None` if the
    /// kernel cannot unload modules.
    #[must_use]
    pub fn usage(&self, address: Gva, bytes: &[u8]) -> Option<ModuleUsage> {
        self.layout.usage.as_ref()?.read(address, bytes)
    }

    /// The build-id of `module`, from the bytes of the `struct module`; `None` if the module has none, or if it cannot be read. `read` reads
    /// as many bytes at an address.
    #[must_use]
    pub fn build_id(
        &self,
        bytes: &[u8],
        module: &Module,
        read: impl Fn(Gva, usize) -> Option<Vec<u8>>,
    ) -> Option<BuildId> {
        self.layout.notes.as_ref()?.build_id(read, bytes, module)
    }

    /// The modules on the kernel's list, without symbols and sites, up to the first that cannot be read. `head` is the run-time address
    /// of the list. For stacks of a guest that runs: a read for each module.
    #[must_use]
    pub fn described(
        &self,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        head: Gva,
    ) -> Vec<Module> {
        let view = View::new(memory, paging);
        let mut modules = Vec::new();
        let Ok(mut link) = pointer(&view, head) else {
            return modules;
        };
        for _ in 0..MAX_MODULES {
            if link == head {
                break;
            }
            let address = self.at_link(link);
            let Ok(bytes) = self.bytes(&view, address) else {
                break;
            };
            modules.extend(self.describe(address, &bytes));
            link = self.next_link(&bytes);
        }
        modules
    }

    fn bytes(&self, view: &View<'_>, address: Gva) -> Result<Vec<u8>, ModulesError> {
        view.bytes("a module", address, self.layout.size)
    }

    fn state(&self, bytes: &[u8], address: Gva) -> Result<ModuleState, ModulesError> {
        let state = self.layout.state.read(bytes);
        let why = "it has no state";
        state
            .and_then(ModuleState::from_number)
            .ok_or(ModulesError::NotAModule { address, why })
    }

    fn module(&self, view: &View<'_>, address: Gva, bytes: &[u8]) -> Result<Module, ModulesError> {
        let mut module = self.describe(address, bytes)?;
        if module.state == ModuleState::Unformed {
            return Ok(module);
        }
        let symbols =
            Symtab::read(view, &self.layout, bytes).and_then(|table| table.symbols(view, &module));
        match symbols {
            Ok(symbols) => module.symbols = symbols,
            Err(error) => module.unread.push(error),
        }
        sites::read(view, &self.layout, bytes, &mut module);
        module.build_id = self.build_id(bytes, &module, |at, len| {
            view.bytes("a module's notes", at, len).ok()
        });
        Ok(module)
    }
}

pub(super) fn pointer(view: &View<'_>, address: Gva) -> Result<Gva, ModulesError> {
    let bytes = view.bytes("the list of modules", address, 8)?;
    let pointer = bytes.try_into().map(u64::from_le_bytes);
    Ok(Gva(pointer.unwrap_or_default()))
}

/// The text before the first zero.
fn name(bytes: &[u8]) -> Option<String> {
    let len = bytes.iter().position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    let is_name = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_name.then(|| text.to_owned())
}
