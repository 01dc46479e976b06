//! The way of an interrupt: a device's line, a pin of the IOAPIC, a message to the local APICs.

use std::fmt;
use std::sync::Arc;

use super::ioapic::Ioapic;

/// A message-signalled interrupt in the format of the x86 architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiMessage {
    /// Address: 0xfee in bits 31–20, destination, destination mode.
    pub address: u64,
    /// Data: vector, delivery mode, trigger mode.
    pub data: u32,
}

/// Delivers interrupts to the local APICs.
///
/// Called with the IOAPIC's lock held, from vCPU threads and from the event thread: it must not
/// wait for a vCPU.
pub trait MsiSink: Send + Sync {
    /// Delivers one interrupt (`KVM_SIGNAL_MSI`).
    fn signal(&self, address: u64, data: u32);

    /// The guest has set or removed the message of a level-triggered pin.
    ///
    /// KVM reports the end of a level-triggered interrupt (`KVM_EXIT_IOAPIC_EOI`) only for the
    /// vectors of KVM's own level-triggered routes. A machine with level-triggered devices has to
    /// keep a KVM route per pin. If all devices are edge-triggered, the sink has nothing to do.
    fn level_route_changed(&self, _pin: u8, _route: Option<MsiMessage>) {}
}

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
