//! COM1: a 16550A by vm-superio, with an interrupt line and an event for room in the receive FIFO.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vm_superio::serial::SerialEvents;
use vm_superio::{Serial as Uart, Trigger};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::bus::PortDevice;
use super::irq::IrqLine;

/// First port of COM1.
pub const COM1_PORT: u16 = 0x3f8;
/// Ports of a COM interface.
pub const COM_PORTS: u8 = 8;
/// The global system interrupt of COM1.
pub const COM1_GSI: u8 = 4;

const MODEM_CONTROL_OFFSET: u16 = 4;

/// A serial port. The lock is held while the output is written and while the interrupt line is
/// pulsed. The output should therefore not block for long: a vCPU waits for the lock.
pub struct Serial {
    uart: Mutex<Uart<Line, Arc<RoomSignal>, Box<dyn Write + Send>>>,
    room: Arc<RoomSignal>,
}

impl Serial {
    /// A serial port that writes to `output`.
    ///
    /// # Errors
    ///
    /// When the host has no event descriptor left.
    pub fn new(irq: Arc<dyn IrqLine>, output: Box<dyn Write + Send>) -> io::Result<Self> {
        let room = Arc::new(RoomSignal(EventFd::new(EFD_NONBLOCK)?));
        let uart = Uart::with_events(Line(irq), Arc::clone(&room), output);
        Ok(Self {
            uart: Mutex::new(uart),
            room,
        })
    }

    /// Puts as much of `input` into the receive FIFO as fits, and returns the number of bytes.
    pub fn enqueue(&self, input: &[u8]) -> usize {
        // The line cannot fail, nor is anything written: the only error is a full FIFO.
        self.lock().enqueue_raw_bytes(input).unwrap_or_default()
    }

    /// Bytes that the receive FIFO has room for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.lock().fifo_capacity()
    }

    /// Becomes readable when the guest has made room in a full FIFO.
    pub(super) fn room_event(&self) -> &EventFd {
        &self.room.0
    }

    fn lock(&self) -> MutexGuard<'_, Uart<Line, Arc<RoomSignal>, Box<dyn Write + Send>>> {
        self.uart.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PortDevice for Serial {
    fn read(&self, offset: u16) -> u8 {
        u8::try_from(offset).map_or(u8::MAX, |offset| self.lock().read(offset))
    }

    fn write(&self, offset: u16, value: u8) {
        let Ok(register) = u8::try_from(offset) else {
            return;
        };
        // A failed output loses the byte, like a serial line without a listener. A guest must not
        // stop because its console has gone away.
        let _ = self.lock().write(register, value);
        if offset == MODEM_CONTROL_OFFSET {
            // Input that came in loopback mode was refused although there was room.
            self.room.notify();
        }
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Serial").field(&self.lock().state()).finish()
    }
}

/// The UART's interrupt output.
struct Line(Arc<dyn IrqLine>);

impl Trigger for Line {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.pulse();
        Ok(())
    }
}

/// Signals to the input side that the guest has emptied the receive FIFO.
struct RoomSignal(EventFd);

impl RoomSignal {
    fn notify(&self) {
        // Fails only if the counter is full, and then the descriptor is readable already.
        let _ = self.0.write(1);
    }
}

impl SerialEvents for RoomSignal {
    fn buffer_read(&self) {}
    fn out_byte(&self) {}
    fn tx_lost_byte(&self) {}

    fn in_buffer_empty(&self) {
        self.notify();
    }
}

#[cfg(test)]
mod tests;
