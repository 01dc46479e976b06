//! A patch site.

use address::Gva;

use super::PatchKind;

/// A site patched by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PatchSite {
    /// The address of the first byte of the patch.
    pub address: Gva,
    /// The largest number of patched bytes, from the address on.
    pub len: u8,
    /// The kind of patching.
    pub kind: PatchKind,
    /// For a jump label, the target of the jump.
    pub target: Option<Gva>,
}

impl PatchSite {
    /// The first address behind the site.
    #[must_use]
    pub const fn end(&self) -> Gva {
        self.address.wrapping_add(self.len as u64)
    }
}
