//! Code in which specifications are resolved: the kernel's or a module's.

use std::borrow::Cow;

use address::Gva;
use introspect::insn::branch_into;
use introspect::{PatchSite, Symbol};

use crate::kernel::Kernel;

/// The kernel as in its file, or a module as in memory, at the addresses of its symbols.
pub(crate) trait KernelCode {
    /// The bytes of a function; fewer, or none, if not available.
    fn function_bytes(&self, symbol: &Symbol) -> Cow<'_, [u8]>;

    /// Whether `at` holds code.
    fn holds_code(&self, at: Gva) -> bool;

    /// Whether the code at `at` is freed after its only execution.
    fn is_init(&self, at: Gva) -> bool;

    /// The patch site within `len` bytes from `at` on, if any.
    fn patched(&self, at: Gva, len: u64) -> Option<PatchSite>;

    /// The address of the module's description in guest memory; `None` for the kernel proper.
    fn module(&self) -> Option<Gva>;

    /// Whether a direct branch within the function `symbol` may target `range`; `true` if its code cannot be decoded to the end.
    fn may_branch_into(&self, symbol: &Symbol, range: &std::ops::Range<Gva>) -> bool {
        !matches!(
            branch_into(&self.function_bytes(symbol), symbol.address, range),
            Ok(None)
        )
    }
}

impl KernelCode for Kernel {
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
