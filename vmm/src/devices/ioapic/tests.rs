use proptest::prelude::*;

use super::*;
use crate::devices::msi::MsiMessage;
use crate::devices::recording::{MsiCall, Recorder};

const MASKED: u32 = 1 << 16;
const LEVEL: u32 = 1 << 15;
const REMOTE_IRR: u32 = 1 << 14;
const LOGICAL: u32 = 1 << 11;
const PIN: u8 = 4;

struct Machine {
    ioapic: Ioapic,
    sink: Arc<Recorder<MsiCall>>,
}

impl Machine {
    fn new() -> Self {
        let sink = Arc::new(Recorder::new());
        Self {
            ioapic: Ioapic::new(sink.clone()),
            sink,
        }
    }

    fn with_pin(low: u32, high: u32) -> Self {
        let machine = Self::new();
        machine.write(TABLE + 2 * PIN + 1, high);
        machine.write(TABLE + 2 * PIN, low);
        machine.sink.take();
        machine
    }

    fn select(&self, register: u8) {
        MmioDevice::write(
            &self.ioapic,
            SELECT_OFFSET,
            &u32::from(register).to_le_bytes(),
        );
    }

    fn write(&self, register: u8, value: u32) {
        self.select(register);
        MmioDevice::write(&self.ioapic, WINDOW_OFFSET, &value.to_le_bytes());
    }

    fn read(&self, register: u8) -> u32 {
        self.select(register);
        let mut data = [0; 4];
        MmioDevice::read(&self.ioapic, WINDOW_OFFSET, &mut data);
        u32::from_le_bytes(data)
    }

    fn pulse(&self) {
        self.ioapic.set_line(PIN, true);
        self.ioapic.set_line(PIN, false);
    }

    /// The interrupts delivered since the last call.
    fn delivered(&self) -> Vec<MsiMessage> {
        let calls = self.sink.take().into_iter();
        calls
            .filter_map(|call| match call {
                MsiCall::Signal(message) => Some(message),
                MsiCall::Route(..) => None,
            })
            .collect()
    }
}

#[test]
fn id_and_version_registers_are_constant() {
    let machine = Machine::new();
    assert_eq!(machine.read(VERSION), 0x0017_0020);
    machine.write(ID, 0xffff_ffff);
    assert_eq!(machine.read(ID), 0x0f00_0000);
    assert_eq!(machine.read(ARBITRATION), 0x0f00_0000);
    machine.write(VERSION, 7);
    assert_eq!(machine.read(VERSION), 0x0017_0020);
    assert_eq!(machine.read(0x0f), 0);
    assert_eq!(machine.read(TABLE + 2 * IOAPIC_PINS), 0);
}

#[test]
fn every_pin_starts_masked() {
    let machine = Machine::new();
    for pin in 0..IOAPIC_PINS {
        assert_eq!(machine.read(TABLE + 2 * pin), MASKED);
        assert_eq!(machine.read(TABLE + 2 * pin + 1), 0);
    }
    machine.pulse();
    assert_eq!(machine.delivered(), []);
}

#[test]
fn an_edge_is_delivered_once() {
    let machine = Machine::with_pin(0x31, 2 << 24);
    machine.ioapic.set_line(PIN, true);
    machine.ioapic.set_line(PIN, true);
    let message = MsiMessage {
        address: 0xfee0_2000,
        data: 0x31,
    };
    assert_eq!(machine.delivered(), [message]);
    machine.ioapic.set_line(PIN, false);
    assert_eq!(machine.delivered(), []);
    machine.pulse();
    assert_eq!(machine.delivered(), [message]);
}

#[test]
fn the_message_says_mode_and_destination() {
    // Lowest priority, logical, CPUs 0 and 1.
    let machine = Machine::with_pin(0x131 | LOGICAL, 3 << 24);
    machine.pulse();
    assert_eq!(
        machine.delivered(),
        [MsiMessage {
            address: 0xfee0_3004,
            data: 0x131
        }]
    );
}

#[test]
fn an_edge_on_a_masked_pin_is_lost() {
    let machine = Machine::with_pin(0x31 | MASKED, 0);
    machine.pulse();
    machine.write(TABLE + 2 * PIN, 0x31);
    assert_eq!(machine.delivered(), []);
}

#[test]
fn a_level_is_delivered_until_it_is_gone() {
    let machine = Machine::with_pin(0x40 | LEVEL, 0);
    let message = MsiMessage {
        address: 0xfee0_0000,
        data: 0xc040,
    };
    machine.ioapic.set_line(PIN, true);
    assert_eq!(machine.delivered(), [message]);
    assert_eq!(machine.read(TABLE + 2 * PIN), 0x40 | LEVEL | REMOTE_IRR);
    machine.ioapic.set_line(PIN, true);
    assert_eq!(machine.delivered(), []);
    // Still high at the end of the interrupt: again.
    machine.ioapic.end_of_interrupt(0x41);
    assert_eq!(machine.delivered(), []);
    machine.ioapic.end_of_interrupt(0x40);
    assert_eq!(machine.delivered(), [message]);
    machine.ioapic.set_line(PIN, false);
    machine.ioapic.end_of_interrupt(0x40);
    assert_eq!(machine.delivered(), []);
    assert_eq!(machine.read(TABLE + 2 * PIN), 0x40 | LEVEL);
}

#[test]
fn a_level_waits_for_its_mask() {
    let machine = Machine::with_pin(0x40 | LEVEL | MASKED, 0);
    machine.ioapic.set_line(PIN, true);
    assert_eq!(machine.delivered(), []);
    machine.write(TABLE + 2 * PIN, 0x40 | LEVEL);
    assert_eq!(machine.delivered().len(), 1);
}

#[test]
fn the_eoi_register_ends_an_interrupt() {
    let machine = Machine::with_pin(0x40 | LEVEL, 0);
    machine.ioapic.set_line(PIN, true);
    machine.ioapic.set_line(PIN, false);
    MmioDevice::write(&machine.ioapic, EOI_OFFSET, &[0x40, 0, 0, 0]);
    assert_eq!(machine.read(TABLE + 2 * PIN), 0x40 | LEVEL);
}

#[test]
fn read_only_bits_stay_and_edge_mode_clears_the_remote_irr() {
    let machine = Machine::with_pin(0x40 | LEVEL, 0);
    machine.ioapic.set_line(PIN, true);
    machine.write(TABLE + 2 * PIN, 0x40 | LEVEL | MASKED);
    assert_eq!(
        machine.read(TABLE + 2 * PIN),
        0x40 | LEVEL | MASKED | REMOTE_IRR
    );
    machine.write(TABLE + 2 * PIN, 0x40 | MASKED | REMOTE_IRR);
    assert_eq!(machine.read(TABLE + 2 * PIN), 0x40 | MASKED);
}

#[test]
fn routes_are_reported_for_level_pins_only() {
    let machine = Machine::new();
    machine.write(TABLE + 2 * PIN, 0x31);
    machine.write(TABLE + 2 * PIN, 0x40 | LEVEL);
    let route = MsiMessage {
        address: 0xfee0_0000,
        data: 0xc040,
    };
    let calls = [MsiCall::Route(PIN, None), MsiCall::Route(PIN, Some(route))];
    assert_eq!(machine.sink.take(), calls);
}

#[test]
fn accesses_of_other_sizes_are_harmless() {
    let machine = Machine::with_pin(0x31, 0);
    machine.select(TABLE + 2 * PIN);
    MmioDevice::write(&machine.ioapic, WINDOW_OFFSET, &[0]);
    MmioDevice::write(&machine.ioapic, WINDOW_OFFSET, &[]);
    let mut wide = [0xff; 8];
    MmioDevice::read(&machine.ioapic, WINDOW_OFFSET, &mut wide);
    assert_eq!(wide, [0x31, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
}

proptest! {
    #[test]
    fn any_access_is_survived(
        accesses in prop::collection::vec(
            (any::<bool>(), 0_u64..0x60, prop::collection::vec(any::<u8>(), 0..9)),
            0..64,
        ),
        pins in prop::collection::vec((any::<u8>(), any::<bool>()), 0..16),
    ) {
        let machine = Machine::new();
        for (write, offset, mut data) in accesses {
            match write {
                true => MmioDevice::write(&machine.ioapic, offset & !0xf, &data),
                false => MmioDevice::read(&machine.ioapic, offset, &mut data),
            }
        }
        for (pin, high) in pins {
            machine.ioapic.set_line(pin, high);
            machine.ioapic.end_of_interrupt(pin);
        }
    }
}
