//! A module and its parts.

use std::ops::Range;

use address::Gva;

use super::ModulesError;
use crate::orc::ModuleRules;
use crate::{BuildId, PatchSite, Symbol};

/// The state of a module, as in `enum module_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleState {
    /// The init function has succeeded.
    Live,
    /// The module is loaded; the init function runs or is about to run.
    Coming,
    /// The exit function runs or has run.
    Going,
    /// The kernel is building the module or taking the module apart; symbols and addresses mean
    /// nothing.
    Unformed,
}

impl ModuleState {
    /// The state of a number in `enum module_state`, unchanged since kernels have BTF and modules.
    pub(super) const fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Live),
            1 => Some(Self::Coming),
            2 => Some(Self::Going),
            3 => Some(Self::Unformed),
            _ => None,
        }
    }
}

/// The kind of a module's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// Code with the lifetime of the module.
    Text,
    /// Data with the lifetime of the module.
    Data,
    /// Code freed after the init function.
    InitText,
    /// Data freed after the init function.
    InitData,
}

impl RegionKind {
    /// Whether the part is code.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::InitText)
    }

    /// Whether the kernel frees the part after the init function.
    #[must_use]
    pub const fn is_init(self) -> bool {
        matches!(self, Self::InitText | Self::InitData)
    }
}

/// A part of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleRegion {
    /// The addresses; not empty.
    pub range: Range<Gva>,
    /// The kind of the part.
    pub kind: RegionKind,
}

/// A module of the guest's kernel at the time of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub(super) address: Gva,
    pub(super) name: String,
    pub(super) state: ModuleState,
    pub(super) regions: Vec<ModuleRegion>,
    pub(super) symbols: Vec<Symbol>,
    pub(super) sites: Vec<PatchSite>,
    pub(super) unread: Vec<ModulesError>,
    pub(super) unwind_rules: Option<ModuleRules>,
    pub(super) build_id: Option<BuildId>,
}

impl Module {
    /// A live module of which only the parts are known: no symbols, no sites.
    #[must_use]
    pub fn with_regions(address: Gva, name: &str, regions: Vec<ModuleRegion>) -> Self {
        Self {
            address,
            name: name.to_owned(),
            state: ModuleState::Live,
            regions,
            symbols: Vec::new(),
            sites: Vec::new(),
            unread: Vec::new(),
            unwind_rules: None,
            build_id: None,
        }
    }

    /// The same module with these symbols, in address order.
    #[must_use]
    pub fn with_symbols(self, symbols: Vec<Symbol>) -> Self {
        Self { symbols, ..self }
    }

    /// The address of the `struct module`, which identifies a module even among modules of the same
    /// name.
    #[must_use]
    pub const fn address(&self) -> Gva {
        self.address
    }

    /// The name, as printed by lsmod.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The module's state.
    #[must_use]
    pub const fn state(&self) -> ModuleState {
        self.state
    }

    /// The module's code and data; without the init parts after they are freed.
    #[must_use]
    pub fn regions(&self) -> &[ModuleRegion] {
        &self.regions
    }

    /// The part of the module that holds `address`.
    #[must_use]
    pub fn region_at(&self, address: Gva) -> Option<&ModuleRegion> {
        let holds = |region: &&ModuleRegion| region.range.contains(&address);
        self.regions.iter().find(holds)
    }

    /// Whether `address` lies in the module's code.
    #[must_use]
    pub fn holds_code(&self, address: Gva) -> bool {
        self.region_at(address)
            .is_some_and(|region| region.kind.is_text())
    }

    /// Whether `address` lies in a part freed after the init function.
    #[must_use]
    pub fn is_init(&self, address: Gva) -> bool {
        self.region_at(address)
            .is_some_and(|region| region.kind.is_init())
    }

    /// The module's symbols in address order; symbols of the init parts while the parts exist. Each
    /// symbol names the module, and ends at the end of the part at the latest.
    #[must_use]
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The sites in the module that the kernel patches at run time.
    #[must_use]
    pub fn patch_sites(&self) -> &[PatchSite] {
        &self.sites
    }

    /// The rules for unwinding stacks; `None` if the kernel or the module has none.
    #[must_use]
    pub const fn unwind_rules(&self) -> Option<ModuleRules> {
        self.unwind_rules
    }

    /// The build-id of the module's file, which the file with its debug information repeats; `None` if the module has none, and before the
    /// kernel shows the module in sysfs.
    #[must_use]
    pub const fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// Whether `other` is the same module, not loaded anew and with the same parts.
    #[must_use]
    pub fn is_same_load(&self, other: &Self) -> bool {
        let of = |module: &Self| (module.address, module.state, module.unwind_rules);
        of(self) == of(other) && self.name == other.name && self.regions == other.regions
    }

    /// The errors of reading the module's tables: after an error, symbols or sites may be missing.
    #[must_use]
    pub fn unread(&self) -> &[ModulesError] {
        &self.unread
    }
}
