//! The references to a module, and the modules that use a module.

use address::Gva;

use crate::btf::{Btf, Slot, StructId};

/// `MODULE_REF_BASE`: the kernel holds a reference of each loaded module itself.
const OWN_REFERENCES: i32 = 1;

/// The offsets in `struct module` and `struct module_use`.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsageLayout {
    references: Slot,
    /// `source_list.next`, the head of the list of users.
    users: Slot,
    init: Slot,
    exit: Slot,
    link: Slot,
    user: Slot,
}

/// How a module is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleUsage {
    /// The references to the module, without the kernel's own; -1 while the kernel removes the module.
    pub references: i32,
    /// The kernel cannot unload the module: the module has no exit function.
    pub permanent: bool,
    /// The address of the head of the list of users.
    pub head: Gva,
    /// The first link of the list of users; the head, if no module uses this module.
    pub first: Gva,
    /// The distance from a link to the pointer to the using module's `struct module`.
    pub to_user: i64,
}

impl UsageLayout {
    /// `None` if the kernel is built without unloading.
    pub(super) fn from_btf(btf: &Btf, module: StructId) -> Option<Self> {
        let uses = btf.struct_named("module_use")?;
        Some(Self {
            references: Slot::find(btf, module, "refcnt.counter")?,
            users: Slot::find(btf, module, "source_list.next")?,
            init: Slot::find(btf, module, "init")?,
            exit: Slot::find(btf, module, "exit")?,
            link: Slot::find(btf, uses, "source_list.next")?,
            user: Slot::find(btf, uses, "source")?,
        })
    }

    pub(super) fn read(&self, address: Gva, bytes: &[u8]) -> Option<ModuleUsage> {
        let counter = u32::try_from(self.references.read(bytes)?).ok()?;
        let [link, user] = [self.link, self.user].map(|slot| i64::try_from(slot.at()).ok());
        Some(ModuleUsage {
            references: counter.cast_signed().wrapping_sub(OWN_REFERENCES),
            permanent: self.init.read(bytes)? != 0 && self.exit.read(bytes)? == 0,
            head: address.wrapping_add(self.users.at() as u64),
            first: Gva(self.users.read(bytes)?),
            to_user: user?.checked_sub(link?)?,
        })
    }
}
