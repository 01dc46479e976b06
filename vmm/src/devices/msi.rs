//! The message of an interrupt to the local APICs.

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
