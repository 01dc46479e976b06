//! The buses: port space and MMIO, with the device of each address.
//!
//! Both buses are filled before the guest runs and only read afterwards, so a look-up takes no
//! lock.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Result of a read at an address without a device: the lines float high.
const FLOATING: u8 = 0xff;

/// A device with byte-wide registers in port space.
///
/// Wider accesses arrive as one call per byte, at ascending offsets, as on an ISA bus.
/// Calls come from any vCPU's thread.
pub trait PortDevice: Send + Sync {
    /// The guest reads the register at `offset` from the device's first port.
    fn read(&self, offset: u16) -> u8;
    /// The guest writes the register at `offset` from the device's first port.
    fn write(&self, offset: u16, value: u8);
}

/// A device in guest-physical memory. Calls come from any vCPU's thread.
pub trait MmioDevice: Send + Sync {
    /// The guest reads `data.len()` bytes at `offset`; `data` holds ones.
    fn read(&self, offset: u64, data: &mut [u8]);
    /// The guest writes `data` at `offset`.
    fn write(&self, offset: u64, data: &[u8]);
}

/// Why a device could not be put on a bus.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BusError {
    /// The range is empty or runs past the end of the address space.
    #[error("a device cannot have 0x{len:x} addresses from 0x{start:x} on")]
    Range {
        /// First address.
        start: u64,
        /// Number of addresses.
        len: u64,
    },
    /// The range overlaps another device.
    #[error("a device at 0x{start:x} overlaps the one at 0x{other:x}")]
    Overlap {
        /// First address of the new device.
        start: u64,
        /// First address of the other device.
        other: u64,
    },
}

/// Devices by address, sorted and without overlaps.
struct RangeMap<D: ?Sized> {
    entries: Vec<Entry<D>>,
}

struct Entry<D: ?Sized> {
    first: u64,
    last: u64,
    device: Arc<D>,
}

impl<D: ?Sized> RangeMap<D> {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    fn insert(&mut self, start: u64, len: u64, max: u64, device: Arc<D>) -> Result<(), BusError> {
        let last = len
            .checked_sub(1)
            .and_then(|len| start.checked_add(len))
            .filter(|&last| last <= max)
            .ok_or(BusError::Range { start, len })?;
        let at = self.entries.partition_point(|entry| entry.last < start);
        match self.entries.get(at) {
            Some(next) if next.first <= last => Err(BusError::Overlap {
                start,
                other: next.first,
            }),
            _ => {
                self.entries.insert(
                    at,
                    Entry {
                        first: start,
                        last,
                        device,
                    },
                );
                Ok(())
            }
        }
    }

    /// The device at `address`, and the offset in the device.
    fn find(&self, address: u64) -> Option<(&D, u64)> {
        let at = self.entries.partition_point(|entry| entry.last < address);
        let entry = self.entries.get(at)?;
        Some((&*entry.device, address.checked_sub(entry.first)?))
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let ranges = self.entries.iter().map(|entry| entry.first..=entry.last);
        f.write_str(name)?;
        f.debug_list().entries(ranges).finish()
    }
}

/// Port space.
pub struct PortBus {
    devices: RangeMap<dyn PortDevice>,
}

impl PortBus {
    /// A bus without devices.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            devices: RangeMap::new(),
        }
    }

    /// Puts a device at `ports` ports from `first` on.
    ///
    /// # Errors
    ///
    /// When the range is impossible or taken.
    pub fn insert(
        &mut self,
        first: u16,
        ports: u16,
        device: Arc<dyn PortDevice>,
    ) -> Result<(), BusError> {
        self.devices.insert(
            u64::from(first),
            u64::from(ports),
            u64::from(u16::MAX),
            device,
        )
    }

    /// Answers a read exit: `data` holds one item of `size` bytes for each repetition.
    ///
    /// All repetitions go to the same port; the bytes of an item go to ascending ports.
    pub fn read(&self, port: u16, size: usize, data: &mut [u8]) {
        for item in data.chunks_mut(size.max(1)) {
            for (port, byte) in ports_from(port).zip(item) {
                *byte = match self.find(port) {
                    Some((device, offset)) => device.read(offset),
                    None => FLOATING,
                };
            }
        }
    }

    /// Carries out a write exit: `data` holds one item of `size` bytes for each repetition.
    pub fn write(&self, port: u16, size: usize, data: &[u8]) {
        for item in data.chunks(size.max(1)) {
            for (port, &byte) in ports_from(port).zip(item) {
                if let Some((device, offset)) = self.find(port) {
                    device.write(offset, byte);
                }
            }
        }
    }

    fn find(&self, port: u16) -> Option<(&dyn PortDevice, u16)> {
        let (device, offset) = self.devices.find(u64::from(port))?;
        Some((device, u16::try_from(offset).ok()?))
    }
}

impl Default for PortBus {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PortBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.devices.describe(f, "PortBus")
    }
}

/// Port space wraps around.
fn ports_from(first: u16) -> impl Iterator<Item = u16> {
    (0..=u16::MAX).map(move |offset| first.wrapping_add(offset))
}

/// MMIO: guest-physical memory outside RAM.
pub struct MmioBus {
    devices: RangeMap<dyn MmioDevice>,
}

impl MmioBus {
    /// A bus without devices.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            devices: RangeMap::new(),
        }
    }

    /// Puts a device at `bytes` bytes from `first` on.
    ///
    /// # Errors
    ///
    /// When the range is impossible or taken.
    pub fn insert(
        &mut self,
        first: u64,
        bytes: u64,
        device: Arc<dyn MmioDevice>,
    ) -> Result<(), BusError> {
        self.devices.insert(first, bytes, u64::MAX, device)
    }

    /// Answers a read exit. Returns whether a device answered; otherwise `data` is all ones.
    pub fn read(&self, address: u64, data: &mut [u8]) -> bool {
        data.fill(FLOATING);
        let found = self.devices.find(address);
        if let Some((device, offset)) = found {
            device.read(offset, data);
        }
        found.is_some()
    }

    /// Carries out a write exit. Returns whether a device took the write.
    pub fn write(&self, address: u64, data: &[u8]) -> bool {
        let found = self.devices.find(address);
        if let Some((device, offset)) = found {
            device.write(offset, data);
        }
        found.is_some()
    }
}

impl Default for MmioBus {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MmioBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.devices.describe(f, "MmioBus")
    }
}

#[cfg(test)]
mod tests;
