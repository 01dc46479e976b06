//! Code in which places are looked for.

use std::borrow::Cow;

use introspect::insn::branch_into;
use introspect::{Gva, PatchSite, Symbol};

use crate::kernel::Kernel;

/// The kernel as its file has it, or a module as it lies in memory: at whatever addresses its symbols have.
pub(crate) trait Text {
    /// The bytes of a function; fewer, or none, where they cannot be had.
    fn function_bytes(&self, symbol: &Symbol) -> Cow<'_, [u8]>;

    /// Whether `at` holds code.
    fn holds_code(&self, at: Gva) -> bool;

    /// Whether what lies at `at` is freed when it has been executed once.
    fn is_init(&self, at: Gva) -> bool;

    /// What the kernel patches in `len` bytes from `at` on.
    fn patched(&self, at: Gva, len: u64) -> Option<PatchSite>;

    /// Where the module's description lies in the guest's memory; `None` for the kernel proper.
    fn module(&self) -> Option<Gva>;

    /// Whether a direct branch within the function `symbol` may go into `range`; `true` when its code cannot be
    /// followed to the end.
    fn may_branch_into(&self, symbol: &Symbol, range: &std::ops::Range<Gva>) -> bool {
        !matches!(
            branch_into(&self.function_bytes(symbol), symbol.address, range),
            Ok(None)
        )
    }
}

impl Text for Kernel {
    fn function_bytes(&self, symbol: &Symbol) -> Cow<'_, [u8]> {
        Cow::Borrowed(Self::function_bytes(self, symbol))
    }

    fn holds_code(&self, at: Gva) -> bool {
        Self::holds_code(self, at)
    }

    fn is_init(&self, at: Gva) -> bool {
        Self::is_init(self, at)
    }

    fn patched(&self, at: Gva, len: u64) -> Option<PatchSite> {
        self.sites().overlapping(at, len)
    }

    fn module(&self) -> Option<Gva> {
        None
    }
}
