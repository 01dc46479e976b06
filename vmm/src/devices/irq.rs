//! The interrupt line of a device: a pin of the IOAPIC.

use std::fmt;
use std::sync::Arc;

use super::ioapic::Ioapic;

/// A device's edge-triggered interrupt output.
pub trait IrqLine: Send + Sync {
    /// Gives one pulse.
    fn pulse(&self);
}

/// A pin of the IOAPIC as a device's interrupt line.
#[derive(Clone)]
pub struct IoapicPin {
    ioapic: Arc<Ioapic>,
    pin: u8,
}

impl IoapicPin {
    /// The line to pin `pin`: the GSI of the same number.
    #[must_use]
    pub fn new(ioapic: Arc<Ioapic>, pin: u8) -> Self {
        Self { ioapic, pin }
    }
}

impl IrqLine for IoapicPin {
    fn pulse(&self) {
        self.ioapic.set_line(self.pin, true);
        self.ioapic.set_line(self.pin, false);
    }
}

impl fmt::Debug for IoapicPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoapicPin")
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}
