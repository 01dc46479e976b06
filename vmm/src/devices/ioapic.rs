//! The IOAPIC, in the VMM because the in-kernel one comes with a PIC and ports of its own.
//!
//! As the 82093AA, with the EOI register of later IOAPICs. The level of the line is stored per pin.
//! After a change of a level or of the table, only [`State::evaluate`] decides about an interrupt.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bus::MmioDevice;
use super::msi::MsiSink;
use super::redirection::Redirection;

/// The number of pins; pin n is GSI n.
pub const IOAPIC_PINS: u8 = 24;
/// Bytes of guest-physical memory occupied by the registers.
pub const IOAPIC_BYTES: u64 = 0x1000;

const PINS: usize = IOAPIC_PINS as usize;
/// Offsets of the registers visible to the processor.
const SELECT_OFFSET: u64 = 0x00;
const WINDOW_OFFSET: u64 = 0x10;
const EOI_OFFSET: u64 = 0x40;
/// Registers behind the window.
const ID: u8 = 0x00;
const VERSION: u8 = 0x01;
const ARBITRATION: u8 = 0x02;
const TABLE: u8 = 0x10;
/// Version 0x20, the first with an EOI register; bits 23–16 are the highest entry's number.
const VERSION_VALUE: u32 = 0x20 | (IOAPIC_PINS as u32 - 1) << 16;
const ID_MASK: u32 = 0x0f00_0000;

/// The IOAPIC. The lock is held while [`MsiSink`] is called.
pub struct Ioapic {
    state: Mutex<State>,
    sink: Arc<dyn MsiSink>,
}

struct State {
    select: u8,
    id: u32,
    table: [Redirection; PINS],
    /// Whether each pin's line is high.
    high: [bool; PINS],
}

/// Half of an entry of the redirection table.
enum Half {
    Low(usize),
    High(usize),
}

impl Ioapic {
    /// An IOAPIC as after a reset: every pin masked, every line low.
    #[must_use]
    pub fn new(sink: Arc<dyn MsiSink>) -> Self {
        let state = State {
            select: 0,
            id: 0,
            table: [Redirection::RESET; PINS],
            high: [false; PINS],
        };
        Self {
            state: Mutex::new(state),
            sink,
        }
    }

    /// Drives the line of `pin` high or low, for a device. Pins that do not exist are ignored.
    ///
    /// A rising edge on a masked edge-triggered pin is lost, as on hardware; kernels expect the loss.
    pub fn set_line(&self, pin: u8, high: bool) {
        let index = usize::from(pin);
        let mut state = self.lock();
        let Some(line) = state.high.get_mut(index) else {
            return;
        };
        let was_high = std::mem::replace(line, high);
        let rose = high && !was_high;
        state.evaluate(index, rose, &*self.sink);
    }

    /// A local APIC has ended a level-triggered interrupt (`KVM_EXIT_IOAPIC_EOI`).
    pub fn end_of_interrupt(&self, vector: u8) {
        self.lock().end_of_interrupt(vector, &*self.sink);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Delivers the interrupt of a pin, if the line and the entry of the pin require an interrupt.
    fn evaluate(&mut self, index: usize, rose: bool, sink: &dyn MsiSink) {
        let high = self.high[index];
        let entry = &mut self.table[index];
        if entry.is_masked() {
            return;
        }
        let due = match entry.is_level() {
            // The devices' lines are active high. A guest that programs a pin as active low follows
            // a table about the wire, not about the level driven by the device.
            true => high && !entry.is_in_service(),
            false => rose,
        };
        if !due {
            return;
        }
        if entry.is_level() {
            entry.set_in_service(true);
        }
        let message = entry.message();
        sink.signal(message.address, message.data);
    }

    fn end_of_interrupt(&mut self, vector: u8, sink: &dyn MsiSink) {
        for index in 0..PINS {
            let entry = &mut self.table[index];
            if entry.is_level() && entry.vector() == vector {
                entry.set_in_service(false);
                // The line may still be high, or high again.
                self.evaluate(index, false, sink);
            }
        }
    }

    fn read(&self) -> u32 {
        match (self.select, self.selected()) {
            (ID | ARBITRATION, _) => self.id,
            (VERSION, _) => VERSION_VALUE,
            (_, Some(Half::Low(index))) => self.table[index].low(),
            (_, Some(Half::High(index))) => self.table[index].high(),
            (_, None) => 0,
        }
    }

    fn write(&mut self, value: u32, sink: &dyn MsiSink) {
        if self.select == ID {
            self.id = value & ID_MASK;
        }
        let index = match self.selected() {
            Some(Half::Low(index)) => {
                self.table[index].set_low(value);
                index
            }
            Some(Half::High(index)) => {
                self.table[index].set_high(value);
                index
            }
            None => return,
        };
        let entry = self.table[index];
        let route = (entry.is_level() && !entry.is_masked()).then(|| entry.message());
        if let Ok(pin) = u8::try_from(index) {
            sink.level_route_changed(pin, route);
        }
        self.evaluate(index, false, sink);
    }

    fn selected(&self) -> Option<Half> {
        let register = usize::from(self.select.checked_sub(TABLE)?);
        let index = register / 2;
        if index >= PINS {
            return None;
        }
        Some(match register % 2 {
            0 => Half::Low(index),
            _ => Half::High(index),
        })
    }
}

impl MmioDevice for Ioapic {
    /// Registers are 32 bits wide; a narrower read gives the low bytes, a wider read gives ones above.
    fn read(&self, offset: u64, data: &mut [u8]) {
        let state = self.lock();
        let value = match offset {
            SELECT_OFFSET => u32::from(state.select),
            WINDOW_OFFSET => state.read(),
            _ => return,
        };
        for (byte, value) in data.iter_mut().zip(value.to_le_bytes()) {
            *byte = value;
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let Some(&low) = data.first() else {
            return;
        };
        let mut state = self.lock();
        match (offset, data.first_chunk()) {
            (SELECT_OFFSET, _) => state.select = low,
            (EOI_OFFSET, _) => state.end_of_interrupt(low, &*self.sink),
            // A narrower write is ignored: the other bits of the register would be made up.
            (WINDOW_OFFSET, Some(&bytes)) => state.write(u32::from_le_bytes(bytes), &*self.sink),
            _ => {}
        }
    }
}

impl fmt::Debug for Ioapic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let pins = state
            .table
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.is_masked());
        f.write_str("Ioapic ")?;
        f.debug_map().entries(pins).finish()
    }
}

#[cfg(test)]
mod tests;
