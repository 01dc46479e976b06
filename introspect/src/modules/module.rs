//! One module.

use std::ops::Range;

use super::ModulesError;
use crate::{Gva, PatchSite, Symbol};

/// How far a module has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleState {
    /// Its init function has succeeded.
    Live,
    /// It is in place; its init function runs or is about to.
    Coming,
    /// Its exit function runs or has run.
    Going,
    /// It is being put together or taken apart; its symbols and places mean nothing.
    Unformed,
}

impl ModuleState {
    /// By the number in `enum module_state`, which has not changed since there are BTF and modules.
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

/// What a part of a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// Code that stays as long as the module.
    Text,
    /// Anything else that stays.
    Data,
    /// Code that is freed when the init function is done.
    InitText,
    /// Anything else that is freed then.
    InitData,
}

impl RegionKind {
    /// Whether it is code.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::InitText)
    }

    /// Whether it is freed when the init function is done.
    #[must_use]
    pub const fn is_init(self) -> bool {
        matches!(self, Self::InitText | Self::InitData)
    }
}

/// A part of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleRegion {
    /// Where it lies; not empty.
    pub range: Range<Gva>,
    /// What it holds.
    pub kind: RegionKind,
}

/// One module of the guest's kernel, as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub(super) address: Gva,
    pub(super) name: String,
    pub(super) state: ModuleState,
    pub(super) regions: Vec<ModuleRegion>,
    pub(super) symbols: Vec<Symbol>,
    pub(super) sites: Vec<PatchSite>,
    pub(super) unread: Vec<ModulesError>,
}

impl Module {
    /// A live module of which nothing is known but where its parts lie.
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
        }
    }

    /// Where its `struct module` lies: what tells two modules apart, also of the same name.
    #[must_use]
    pub const fn address(&self) -> Gva {
        self.address
    }

    /// Its name, as lsmod prints it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How far it has got.
    #[must_use]
    pub const fn state(&self) -> ModuleState {
        self.state
    }

    /// Its code and data; without the init parts once they are freed.
    #[must_use]
    pub fn regions(&self) -> &[ModuleRegion] {
        &self.regions
    }

    /// The part of it that holds `address`.
    #[must_use]
    pub fn region_at(&self, address: Gva) -> Option<&ModuleRegion> {
        let holds = |region: &&ModuleRegion| region.range.contains(&address);
        self.regions.iter().find(holds)
    }

    /// Whether `address` holds code of it.
    #[must_use]
    pub fn holds_code(&self, address: Gva) -> bool {
        self.region_at(address)
            .is_some_and(|region| region.kind.is_text())
    }

    /// Whether what lies at `address` is freed when the init function is done.
    #[must_use]
    pub fn is_init(&self, address: Gva) -> bool {
        self.region_at(address)
            .is_some_and(|region| region.kind.is_init())
    }

    /// Its symbols in address order, those of its init parts while it has them. Each says which
    /// module it belongs to, and ends with the part that it lies in at the latest.
    #[must_use]
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The places in it that the kernel patches while it runs.
    #[must_use]
    pub fn patch_sites(&self) -> &[PatchSite] {
        &self.sites
    }

    /// What could not be read of its tables, so that symbols or sites may be missing.
    #[must_use]
    pub fn unread(&self) -> &[ModulesError] {
        &self.unread
    }
}
