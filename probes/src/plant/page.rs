//! One page with plants.

use std::sync::{Mutex, MutexGuard, PoisonError};

use introspect::{Gpa, PhysMemory};

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
    marks: [Offsets; 4],
}

/// What a byte is besides the guest's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// There is a plant.
    Planted,
    /// Memory does not show the plant for now: the guest has just written there, and may look at what it wrote.
    Withdrawn,
    /// Memory does not show the plant while a vCPU runs alone, since it is to execute the guest's own byte.
    Open,
    /// Memory shows a plant while a vCPU runs alone, since it is to stop there.
    Stop,
}

/// A set of offsets within a page.
#[derive(Debug)]
struct Offsets([u64; PAGE_BYTES / 64]);

impl Bytes {
    fn is(&self, mark: Mark, offset: usize) -> bool {
        self.marks[mark as usize].has(offset)
    }

    fn set(&mut self, mark: Mark, offset: usize, value: bool) {
        self.marks[mark as usize].set(offset, value);
    }

    /// Whether memory shows a plant at `offset` when all vCPUs run.
    fn shows_plant(&self, offset: usize) -> bool {
        self.is(Mark::Planted, offset)
            && !self.is(Mark::Withdrawn, offset)
            && !self.is(Mark::Open, offset)
    }

    /// Whether memory shows something else than the guest's own byte at `offset`.
    fn is_covered(&self, offset: usize) -> bool {
        self.is(Mark::Stop, offset) || self.shows_plant(offset)
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
        memory: &dyn PhysMemory,
        gpa: Gpa,
    ) -> Result<Self, introspect::Unreadable> {
        let mut own = Box::new([0; PAGE_BYTES]);
        memory.read(gpa, own.as_mut_slice())?;
        Ok(Self {
            gpa,
            bytes: Mutex::new(Bytes {
                own,
                marks: [const { Offsets::NONE }; 4],
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Bytes> {
        // Every statement leaves the bytes consistent.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes these marks of the byte at `offset` what they are said to be, and memory show what follows from them: all
    /// of it, or nothing.
    pub(super) fn mark(
        &self,
        memory: &dyn GuestMemory,
        offset: usize,
        plant: PlantByte,
        marks: &[(Mark, bool)],
    ) -> Result<(), Unwritable> {
        let mut bytes = self.lock();
        let before = bytes.marks.each_ref().map(|marks| marks.has(offset));
        for &(mark, value) in marks {
            bytes.set(mark, offset, value);
        }
        let byte = if bytes.is_covered(offset) {
            plant.value()
        } else {
            bytes.own[offset]
        };
        let written = memory.write(self.gpa.wrapping_add(offset as u64), &[byte]);
        if written.is_err() {
            for (marks, before) in bytes.marks.iter_mut().zip(before) {
                marks.set(offset, before);
            }
        }
        written
    }

    /// Whether the byte at `offset` has this mark.
    pub(super) fn has(&self, mark: Mark, offset: usize) -> bool {
        self.lock().is(mark, offset)
    }

    /// The plants in `len` bytes from `offset` on, as far as the page goes: all, or those that memory shows.
    pub(super) fn plants(&self, offset: usize, len: usize, shown: bool) -> Vec<Gpa> {
        let bytes = self.lock();
        (offset..PAGE_BYTES.min(offset.saturating_add(len)))
            .filter(|&at| bytes.is(Mark::Planted, at) && (!shown || bytes.shows_plant(at)))
            .map(|at| self.gpa.wrapping_add(at as u64))
            .collect()
    }

    /// Whether `len` bytes from `offset` on, to be written by the guest, cover a plant that memory shows, and are not
    /// just what the guest has read there (see [`Page::guest_write`]).
    pub(super) fn overwrites_plant(&self, offset: usize, data: &[u8], plant: PlantByte) -> bool {
        let bytes = self.lock();
        data.iter()
            .zip(offset..PAGE_BYTES)
            .any(|(&byte, at)| bytes.shows_plant(at) && !is_stored_back(byte, data.len(), plant))
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
            if bytes.is_covered(at) {
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
