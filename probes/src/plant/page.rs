//! One page with plants.

use std::sync::{Mutex, MutexGuard, PoisonError};

use introspect::Gpa;

use super::PlantByte;
use crate::guest::{GuestMemory, Unwritable};

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;

/// A page whose own bytes are kept.
#[derive(Debug)]
pub(super) struct Page {
    gpa: Gpa,
    /// Held for copying a few bytes only, never while anyone waits: vCPUs that write to one page take turns, as they
    /// would for its cache line.
    bytes: Mutex<Bytes>,
}

#[derive(Debug)]
struct Bytes {
    own: Box<[u8; PAGE_BYTES]>,
    planted: Offsets,
    /// Plants that memory does not show for now: the guest has just written there, and may look at what it wrote.
    withdrawn: Offsets,
}

/// A set of offsets within a page.
#[derive(Debug)]
struct Offsets([u64; PAGE_BYTES / 64]);

impl Bytes {
    /// Whether memory shows a plant at `offset`.
    fn shows_plant(&self, offset: usize) -> bool {
        self.planted.has(offset) && !self.withdrawn.has(offset)
    }
}

impl Offsets {
    const NONE: Self = Self([0; PAGE_BYTES / 64]);

    fn has(&self, offset: usize) -> bool {
        self.0[offset / 64] & (1 << (offset % 64)) != 0
    }

    fn set(&mut self, offset: usize, value: bool) {
        let bit = 1 << (offset % 64);
        if value {
            self.0[offset / 64] |= bit;
        } else {
            self.0[offset / 64] &= !bit;
        }
    }
}

impl Page {
    /// Takes the page's present bytes for the guest's own. The guest must not be able to write it meanwhile.
    pub(super) fn capture(
        memory: &dyn GuestMemory,
        gpa: Gpa,
    ) -> Result<Self, introspect::Unreadable> {
        let mut own = Box::new([0; PAGE_BYTES]);
        memory.read(gpa, own.as_mut_slice())?;
        Ok(Self {
            gpa,
            bytes: Mutex::new(Bytes {
                own,
                planted: Offsets::NONE,
                withdrawn: Offsets::NONE,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Bytes> {
        // Every statement leaves the bytes consistent.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a plant at `offset`, or takes it away.
    pub(super) fn set_plant(
        &self,
        memory: &dyn GuestMemory,
        offset: usize,
        plant: Option<PlantByte>,
    ) -> Result<(), Unwritable> {
        let mut bytes = self.lock();
        let byte = plant.map_or(bytes.own[offset], PlantByte::value);
        memory.write(self.gpa.wrapping_add(offset as u64), &[byte])?;
        bytes.planted.set(offset, plant.is_some());
        bytes.withdrawn.set(offset, false);
        Ok(())
    }

    /// Lets memory show the guest's own byte of a plant until the plant is set again; the plant stays one.
    pub(super) fn withdraw(
        &self,
        memory: &dyn GuestMemory,
        offset: usize,
    ) -> Result<(), Unwritable> {
        let mut bytes = self.lock();
        memory.write(self.gpa.wrapping_add(offset as u64), &[bytes.own[offset]])?;
        bytes.withdrawn.set(offset, true);
        Ok(())
    }

    /// Whether `len` bytes from `offset` on, to be written by the guest, cover a plant that memory shows, and are not
    /// just what the guest has read there (see [`Page::guest_write`]).
    pub(super) fn overwrites_plant(&self, offset: usize, data: &[u8], plant: PlantByte) -> bool {
        let bytes = self.lock();
        data.iter()
            .zip(offset..PAGE_BYTES)
            .any(|(&byte, at)| bytes.shows_plant(at) && !is_stored_back(byte, data.len(), plant))
    }

    /// Shows the guest's own byte of a plant, or the plant again; the plant stays one.
    pub(super) fn show(
        &self,
        memory: &dyn GuestMemory,
        offset: usize,
        plant: Option<PlantByte>,
    ) -> Result<(), Unwritable> {
        let bytes = self.lock();
        let byte = plant.map_or(bytes.own[offset], PlantByte::value);
        memory.write(self.gpa.wrapping_add(offset as u64), &[byte])
    }

    /// The guest writes `data` at `offset`; it must fit the page. Plants that memory shows stay on top.
    ///
    /// A write of the plant's own byte onto a plant may be the guest storing back what it has read from there (it
    /// copies code when it applies alternatives) rather than an instruction of its own: then its byte stays as it is.
    /// With `int3` as the plant a write of one byte is not taken for that: the kernel's text patching puts its own
    /// `int3` with such writes.
    pub(super) fn guest_write(
        &self,
        memory: &dyn GuestMemory,
        offset: usize,
        data: &[u8],
        plant: PlantByte,
    ) -> Result<(), Unwritable> {
        let mut bytes = self.lock();
        let mut shown = [0; 8];
        for (i, &byte) in data.iter().enumerate().take(shown.len()) {
            let at = offset + i;
            if bytes.shows_plant(at) {
                if !is_stored_back(byte, data.len(), plant) {
                    bytes.own[at] = byte;
                }
                shown[i] = plant.value();
            } else {
                bytes.own[at] = byte;
                shown[i] = byte;
            }
        }
        memory.write(
            self.gpa.wrapping_add(offset as u64),
            &shown[..data.len().min(shown.len())],
        )
    }

    /// Copies the guest's own bytes from `offset` on; as many as fit both.
    pub(super) fn read_own(&self, offset: usize, buf: &mut [u8]) {
        let bytes = self.lock();
        let len = buf.len().min(PAGE_BYTES - offset);
        buf[..len].copy_from_slice(&bytes.own[offset..offset + len]);
    }
}

/// See [`Page::guest_write`].
fn is_stored_back(byte: u8, written: usize, plant: PlantByte) -> bool {
    byte == plant.value() && (plant == PlantByte::Port || written > 1)
}
