//! An exception of the guest, and the vectors that the VMM distinguishes.

use address::Gva;

/// An exception to inject at the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Vector, 0 to 31.
    pub vector: u8,
    /// Error code, for vectors with an error code.
    pub error_code: Option<u32>,
    /// CR2, for a page fault.
    pub fault_address: Option<Gva>,
}

impl Exception {
    /// #BP, as an `int3` raises it.
    pub(super) const BREAKPOINT: Self = Self::without_code(BREAKPOINT);
    /// #DB.
    pub(super) const DEBUG: Self = Self::without_code(DEBUG);

    const fn without_code(vector: u8) -> Self {
        Self {
            vector,
            error_code: None,
            fault_address: None,
        }
    }

    /// Whether the exception is a fault: raised before its instruction, which is executed again afterwards.
    pub(super) fn is_fault(&self) -> bool {
        !matches!(
            self.vector,
            DEBUG | NMI | BREAKPOINT | OVERFLOW | DOUBLE_FAULT | MACHINE_CHECK
        )
    }
}

const DEBUG: u8 = 1;
const NMI: u8 = 2;
pub(super) const BREAKPOINT: u8 = 3;
const OVERFLOW: u8 = 4;
const DOUBLE_FAULT: u8 = 8;
const MACHINE_CHECK: u8 = 18;
