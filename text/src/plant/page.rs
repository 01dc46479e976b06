//! One page with plants.

use std::sync::{Mutex, MutexGuard, PoisonError};

use address::{Gpa, PAGE_LEN};
use introspect::PhysMemory;
use introspect::optimise::JUMP_BYTES;

use super::PlantByte;
use crate::guest::{GuestMemory, Unwritable};

/// A page with a copy of its original bytes.
#[derive(Debug)]
pub(super) struct Page {
    gpa: Gpa,
    /// Held only to copy a few bytes, never during a wait. vCPUs that write to one page take turns, as they would for the cache line.
    bytes: Mutex<Bytes>,
}

#[derive(Debug)]
struct Bytes {
    own: Box<[u8; PAGE_LEN]>,
    marks: [Offsets; 4],
    /// The jumps, disjoint and within the page. An `int3` is a jump of one byte.
    jumps: Vec<(usize, Jump)>,
}

/// The instruction that redirects to a detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// `jmp rel32`, over an instruction of 5 bytes or more.
    Near([u8; JUMP_BYTES]),
    /// An `int3`, over an instruction of any length: the kernel's #BP handler and the switch redirect to the detour.
    Int3,
}

/// The number of equal bytes at which a guest write counts as the jump stored back, not as a coincidence.
const STORED_BACK_BYTES: usize = 4;

impl Jump {
    /// The bytes of the jump.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        match self {
            Self::Near(bytes) => bytes,
            Self::Int3 => &[0xcc],
        }
    }

    /// Whether `stored` matching bytes, in one write of `written` bytes, count as the guest storing the jump back. A single written `int3`
    /// does not: the kernel begins to patch with such a write.
    const fn is_stored_back(&self, stored: usize, written: usize) -> bool {
        match self {
            Self::Near(_) => stored >= STORED_BACK_BYTES,
            Self::Int3 => written > 1,
        }
    }
}

/// The state of a byte besides its original value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The byte has a plant.
    Planted,
    /// Memory does not show the plant for now: the guest has just written the byte, and may read it back.
    Withdrawn,
    /// Memory does not show the plant while a vCPU runs alone and is to execute the original byte.
    Open,
    /// Memory shows a plant while a vCPU runs alone, as a stop.
    Stop,
}

/// A set of offsets within a page.
#[derive(Debug)]
struct Offsets([u64; PAGE_LEN / 64]);

impl Bytes {
    fn is(&self, mark: Mark, offset: usize) -> bool {
        self.marks[mark as usize].has(offset)
    }

    fn set(&mut self, mark: Mark, offset: usize, value: bool) {
        self.marks[mark as usize].set(offset, value);
    }

    /// Whether memory shows a plant at `offset` while all vCPUs run.
    fn shows_plant(&self, offset: usize) -> bool {
        self.is(Mark::Planted, offset)
            && !self.is(Mark::Withdrawn, offset)
            && !self.is(Mark::Open, offset)
    }

    /// The jump that covers `offset`, and its start.
    fn jump_over(&self, offset: usize) -> Option<&(usize, Jump)> {
        let holds = |(at, jump): &&(usize, Jump)| (*at..at + jump.bytes().len()).contains(&offset);
        self.jumps.iter().find(holds)
    }

    /// The byte of a jump that memory shows at `offset`. `None` while a vCPU runs alone and is to execute any byte of the displaced
    /// instruction, or to stop at a byte behind the first.
    fn jump_byte(&self, offset: usize) -> Option<u8> {
        let (at, jump) = self.jump_over(offset)?;
        let mut bytes = *at..at + jump.bytes().len();
        let is_hidden = bytes
            .any(|byte| self.is(Mark::Open, byte) || (byte != *at && self.is(Mark::Stop, byte)));
        (!is_hidden).then(|| jump.bytes()[offset - at])
    }

    /// Whether `data`, written by the guest at `offset`, stores back the jump at `at` as read before. A few bytes may be equal by chance;
    /// such a write is the guest's own.
    fn stores_jump_back(&self, offset: usize, data: &[u8], at: usize) -> bool {
        let Some((start, jump)) = self.jump_over(at) else {
            return false;
        };
        let bytes = jump.bytes();
        let written = data.iter().zip(offset..);
        let mut over = written.filter(|(_, at)| (*start..start + bytes.len()).contains(at));
        let mut len = 0;
        over.all(|(byte, at)| {
            len += 1;
            *byte == bytes[at - start]
        }) && jump.is_stored_back(len, data.len())
    }

    /// The byte that memory shows at `offset` instead of the original byte, if any.
    fn cover(&self, offset: usize, plant: PlantByte) -> Option<u8> {
        if self.is(Mark::Stop, offset) {
            return Some(plant.value());
        }
        let jump = self.jump_byte(offset);
        jump.or_else(|| self.shows_plant(offset).then(|| plant.value()))
    }

    fn shown(&self, offset: usize, plant: PlantByte) -> u8 {
        self.cover(offset, plant).unwrap_or(self.own[offset])
    }
}

impl Offsets {
    const NONE: Self = Self([0; PAGE_LEN / 64]);

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
    /// Copies the page's present bytes as the original bytes. The guest must not be able to write the page meanwhile.
    pub(super) fn capture(
        memory: &dyn PhysMemory,
        gpa: Gpa,
    ) -> Result<Self, introspect::Unreadable> {
        let mut own = Box::new([0; PAGE_LEN]);
        memory.read(gpa, own.as_mut_slice())?;
        Ok(Self {
            gpa,
            bytes: Mutex::new(Bytes {
                own,
                marks: [const { Offsets::NONE }; 4],
                jumps: Vec::new(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Bytes> {
        // Every statement leaves the bytes consistent.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets marks of the byte at `offset`, and updates memory to match: all or nothing.
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
        let written = match bytes.jump_over(offset) {
            Some((at, jump)) => self.show(memory, &bytes, *at, jump.bytes().len(), plant),
            None => self.show(memory, &bytes, offset, 1, plant),
        };
        if written.is_err() {
            for (marks, before) in bytes.marks.iter_mut().zip(before) {
                marks.set(offset, before);
            }
        }
        written
    }

    /// Writes `len` bytes from `offset` on to memory, with plants and jumps.
    fn show(
        &self,
        memory: &dyn GuestMemory,
        bytes: &Bytes,
        offset: usize,
        len: usize,
        plant: PlantByte,
    ) -> Result<(), Unwritable> {
        let shown: Vec<u8> = (offset..offset + len)
            .map(|at| bytes.shown(at, plant))
            .collect();
        memory.write(self.gpa.wrapping_add(offset as u64), &shown)
    }

    /// Writes a jump at `offset`, or removes the jump there; after an error, nothing has changed. The other vCPUs are paused.
    pub(super) fn set_jump(
        &self,
        memory: &dyn GuestMemory,
        offset: usize,
        jump: Option<Jump>,
        plant: PlantByte,
    ) -> Result<(), Unwritable> {
        let mut bytes = self.lock();
        let before = bytes.jumps.clone();
        let old = before.iter().find(|(at, _)| *at == offset);
        let len_of = |jump: Option<Jump>| jump.map_or(0, |jump| jump.bytes().len());
        let len = len_of(jump).max(len_of(old.map(|(_, jump)| *jump)));
        let failed = Unwritable {
            gpa: self.gpa.wrapping_add(offset as u64),
            len,
        };
        if len == 0 {
            return Ok(());
        }
        if offset + len > PAGE_LEN {
            return Err(failed);
        }
        bytes.jumps.retain(|(at, _)| *at != offset);
        if let Some(jump) = jump {
            let ends = [offset, offset + jump.bytes().len() - 1];
            if ends.iter().any(|at| bytes.jump_over(*at).is_some()) {
                bytes.jumps = before;
                return Err(failed);
            }
            bytes.jumps.push((offset, jump));
        }
        let written = self.show(memory, &bytes, offset, len, plant);
        if written.is_err() {
            bytes.jumps = before;
        }
        written
    }

    /// The jumps that overlap `len` bytes from `offset` on.
    pub(super) fn jumps(&self, offset: usize, len: usize) -> Vec<Gpa> {
        let bytes = self.lock();
        let end = offset.saturating_add(len);
        let jumps = bytes.jumps.iter();
        jumps
            .filter(|(at, jump)| *at < end && offset < at + jump.bytes().len())
            .map(|(at, _)| self.gpa.wrapping_add(*at as u64))
            .collect()
    }

    /// Whether a guest write of `data` at `offset` changes a byte of a jump. A write that stores back the jump's bytes, as read before,
    /// does not.
    pub(super) fn overwrites_jump(&self, offset: usize, data: &[u8]) -> bool {
        let bytes = self.lock();
        (offset..PAGE_LEN.min(offset + data.len()))
            .any(|at| bytes.jump_byte(at).is_some() && !bytes.stores_jump_back(offset, data, at))
    }

    /// Whether the byte at `offset` has `mark`.
    pub(super) fn has(&self, mark: Mark, offset: usize) -> bool {
        self.lock().is(mark, offset)
    }

    /// The plants in `len` bytes from `offset` on, up to the end of the page: all, or only plants that memory shows. Each byte of a jump
    /// counts as a plant.
    pub(super) fn plants(&self, offset: usize, len: usize, shown: bool) -> Vec<Gpa> {
        let bytes = self.lock();
        (offset..PAGE_LEN.min(offset.saturating_add(len)))
            .filter(|&at| {
                if shown {
                    bytes.jump_byte(at).is_some() || bytes.shows_plant(at)
                } else {
                    bytes.jump_over(at).is_some() || bytes.is(Mark::Planted, at)
                }
            })
            .map(|at| self.gpa.wrapping_add(at as u64))
            .collect()
    }

    /// Whether a guest write of `data` at `offset` covers a plant that memory shows, and is not the plant's byte stored back (see
    /// [`Page::guest_write`]).
    pub(super) fn overwrites_plant(&self, offset: usize, data: &[u8], plant: PlantByte) -> bool {
        let bytes = self.lock();
        data.iter().zip(offset..PAGE_LEN).any(|(&byte, at)| {
            let is_plant = bytes.shows_plant(at) && bytes.jump_byte(at).is_none();
            is_plant && !is_stored_back(byte, data.len(), plant)
        })
    }

    /// Merges a guest write of `data` at `offset`, which must fit the page. Plants that memory shows stay on top.
    ///
    /// If the guest writes the plant's byte onto a plant, the guest may store back a byte read from there (the kernel copies code to apply
    /// alternatives). Such a write leaves the original byte as it is. If the plant is `int3`, a write of one byte counts as the guest's
    /// own: the kernel's text patching writes its `int3` with such writes.
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
            let is_stored_back = match bytes.cover(at, plant) {
                None => false,
                Some(_) if bytes.is(Mark::Stop, at) || bytes.jump_byte(at).is_none() => {
                    is_stored_back(byte, data.len(), plant)
                }
                Some(_) => bytes.stores_jump_back(offset, data, at),
            };
            if !is_stored_back {
                bytes.own[at] = byte;
            }
            shown[i] = bytes.shown(at, plant);
        }
        memory.write(
            self.gpa.wrapping_add(offset as u64),
            &shown[..data.len().min(shown.len())],
        )
    }

    /// Copies original bytes from `offset` on, up to the end of the page or of `buf`.
    pub(super) fn read_own(&self, offset: usize, buf: &mut [u8]) {
        let bytes = self.lock();
        let len = buf.len().min(PAGE_LEN - offset);
        buf[..len].copy_from_slice(&bytes.own[offset..offset + len]);
    }
}

/// See [`Page::guest_write`].
fn is_stored_back(byte: u8, written: usize, plant: PlantByte) -> bool {
    byte == plant.value() && (plant == PlantByte::Port || written > 1)
}

/// The offset of `gpa` on its page.
#[expect(clippy::cast_possible_truncation, reason = "below 4096")]
pub(super) fn offset(gpa: Gpa) -> usize {
    gpa.page_offset() as usize
}
