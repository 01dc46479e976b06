//! An entry of the IOAPIC's redirection table.
//!
//! ```text
//! 63–56 destination   16 masked     14 remote IRR (ro)   12 delivery status (ro)   10–8 delivery mode
//!                     15 level      13 active low        11 logical destination    7–0  vector
//! ```

use super::msi::MsiMessage;

const MASKED: u64 = 1 << 16;
const LEVEL: u64 = 1 << 15;
const REMOTE_IRR: u64 = 1 << 14;
const DELIVERY_STATUS: u64 = 1 << 12;
const LOGICAL: u64 = 1 << 11;
const READ_ONLY: u64 = REMOTE_IRR | DELIVERY_STATUS;
const DESTINATION_SHIFT: u32 = 56;

/// Address bits of every x86 interrupt message.
const MSI_BASE: u64 = 0xfee0_0000;
const MSI_DESTINATION_SHIFT: u32 = 12;
const MSI_LOGICAL: u64 = 1 << 2;
/// The vector and the delivery mode, at the same bits as in an entry.
const MSI_VECTOR_AND_MODE: u32 = 0x7ff;
const MSI_LEVEL: u32 = 1 << 15;
const MSI_ASSERT: u32 = 1 << 14;

/// An entry: the reaction of a pin to the pin's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redirection(u64);

impl Redirection {
    /// As after a reset: masked.
    pub(super) const RESET: Self = Self(MASKED);

    pub(super) fn low(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    pub(super) fn high(self) -> u32 {
        let [.., a, b, c, d] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The guest writes the low half. Leaving level mode forgets the remote IRR: kernels clear a
    /// stuck interrupt in this way.
    pub(super) fn set_low(&mut self, value: u32) {
        let kept = self.0 & (READ_ONLY | 0xffff_ffff_0000_0000);
        self.0 = kept | u64::from(value) & !READ_ONLY;
        if !self.is_level() {
            self.set_in_service(false);
        }
    }

    /// The guest writes the high half.
    pub(super) fn set_high(&mut self, value: u32) {
        self.0 = u64::from(self.low()) | u64::from(value) << 32;
    }

    pub(super) fn is_masked(self) -> bool {
        self.0 & MASKED != 0
    }

    pub(super) fn is_level(self) -> bool {
        self.0 & LEVEL != 0
    }

    pub(super) fn vector(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether a local APIC has accepted the level-triggered interrupt and not ended it yet.
    pub(super) fn is_in_service(self) -> bool {
        self.0 & REMOTE_IRR != 0
    }

    pub(super) fn set_in_service(&mut self, in_service: bool) {
        self.0 = match in_service {
            true => self.0 | REMOTE_IRR,
            false => self.0 & !REMOTE_IRR,
        };
    }

    /// The entry's message to the local APICs.
    pub(super) fn message(self) -> MsiMessage {
        let logical = match self.0 & LOGICAL {
            0 => 0,
            _ => MSI_LOGICAL,
        };
        let trigger = match self.is_level() {
            true => MSI_LEVEL | MSI_ASSERT,
            false => 0,
        };
        let destination = self.0 >> DESTINATION_SHIFT;
        MsiMessage {
            address: MSI_BASE | destination << MSI_DESTINATION_SHIFT | logical,
            data: self.low() & MSI_VECTOR_AND_MODE | trigger,
        }
    }
}
