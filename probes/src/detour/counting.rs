//! Detours that count: what the jump of an optimised probe leads to.
//!
//! ```text
//!  guest's text                       detour
//!  ┌──────────────────────────┐       ┌─────────────────────────┐
//!  │ e9 ..      jmp detour    │ ────▶ │ pushfq                  │
//!  │ ..         next          │ ◀─┐   │ lock inc qword [cell]   │ ──▶ cell, in memory that the guest can write
//!  └──────────────────────────┘   │   │ popfq                   │
//!                                 │   │ the instruction         │
//!                                 └── │ jmp next                │
//!                                     └─────────────────────────┘
//! ```
//!
//! It uses no register, and puts the flags where the kernel's own interrupts put theirs: on the stack. Two vCPUs, an
//! interrupt or an NMI in the middle of it count each for itself.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use introspect::insn::Decoded;
use introspect::{Gpa, Gva};

use super::{DetourError, WayOut};
use crate::guest::GuestMemory;
use crate::plant::Jump;

/// Detours begin at multiples of this.
const ALIGNMENT: usize = 16;
/// From one cell to the next.
const CELL_BYTES: u64 = 16;

const PUSHFQ: u8 = 0x9c;
const POPFQ: u8 = 0x9d;
/// `lock inc qword [rip + disp32]`, without the displacement.
const LOCK_INC: [u8; 4] = [0xf0, 0x48, 0xff, 0x05];
/// `jmp rel32`.
const JUMP: u8 = 0xe9;
const DISPLACEMENT_BYTES: usize = 4;

/// What a jump replaces: instructions one behind the other, of which the first has room for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Jumped {
    first: Decoded,
    then: Option<Decoded>,
}

impl Jumped {
    /// The first instruction, and another that is executed in the detour too. `None` if the jump does not fit the
    /// first, or the other one is not the next.
    pub(crate) fn new(first: Decoded, then: Option<Decoded>) -> Option<Self> {
        let follows = then.is_none_or(|then| then.at() == first.next());
        (first.len() > DISPLACEMENT_BYTES && follows).then_some(Self { first, then })
    }

    /// Where the jump is.
    pub(crate) fn at(&self) -> Gva {
        self.first.at()
    }

    /// What has room for the jump.
    pub(crate) fn first(&self) -> &Decoded {
        &self.first
    }

    /// What is executed in the detour behind it.
    pub(crate) fn then(&self) -> Option<&Decoded> {
        self.then.as_ref()
    }

    fn instructions(&self) -> impl Iterator<Item = &Decoded> {
        std::iter::once(&self.first).chain(&self.then)
    }

    /// Where the detour jumps back to.
    fn next(&self) -> Gva {
        self.then.unwrap_or(self.first).next()
    }

    fn key(&self) -> (Gva, Vec<u8>) {
        let bytes = self.instructions().flat_map(|decoded| decoded.bytes());
        (self.at(), bytes.copied().collect())
    }
}

/// Where a detour counts. Readable from any thread; what the guest's kernel makes of it is its own affair.
#[derive(Clone)]
pub(crate) struct Cell {
    memory: Arc<dyn GuestMemory>,
    gpa: Gpa,
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cell").field(&self.gpa).finish()
    }
}

impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.gpa == other.gpa
    }
}

impl Cell {
    /// How often its detour has been taken.
    pub(crate) fn count(&self) -> u64 {
        self.memory.read_u64(self.gpa).unwrap_or(0)
    }
}

/// A detour that counts.
#[derive(Clone, Debug)]
pub(crate) struct CountingDetour {
    /// Its first instruction.
    pub(crate) entry: Gva,
    /// Where it counts.
    pub(crate) cell: Cell,
}

impl CountingDetour {
    /// The jump that leads to it from `at`.
    ///
    /// # Errors
    ///
    /// When it is too far away.
    pub(crate) fn jump_from(&self, at: Gva) -> Result<Jump, DetourError> {
        let [a, b, c, d] = displacement(at.wrapping_add(5), self.entry)?;
        Ok([JUMP, a, b, c, d])
    }
}

fn displacement(behind: Gva, to: Gva) -> Result<[u8; 4], DetourError> {
    let distance = to.0.wrapping_sub(behind.0).cast_signed();
    let distance = i32::try_from(distance).map_err(|_| DetourError::TooFar)?;
    Ok(distance.to_le_bytes())
}

/// The memory that cells lie in.
#[derive(Clone)]
pub(super) struct Cells {
    pub(super) memory: Arc<dyn GuestMemory>,
    /// As the guest's kernel sees it.
    pub(super) base: Gva,
    pub(super) gpa: Gpa,
    pub(super) bytes: u64,
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cells").field(&self.base).finish()
    }
}

/// A detour to be written.
#[derive(Debug)]
pub(super) struct NewDetour {
    /// From the beginning of the region.
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) detour: CountingDetour,
}

/// The detours of a region. As with copies, one that has been made stays until the whole region is evacuated; the same
/// jump finds it again, and its cell counts on.
#[derive(Debug)]
pub(super) struct Counting {
    base: Gva,
    /// What is free of the region, from its beginning.
    free: Range<usize>,
    made: HashMap<(Gva, Vec<u8>), Made>,
}

#[derive(Debug)]
struct Made {
    detour: CountingDetour,
    jumped: Jumped,
}

impl Counting {
    /// For a region that begins at `base`, in `room` of it.
    pub(super) fn new(base: Gva, room: Range<usize>) -> Self {
        Self {
            base,
            free: room,
            made: HashMap::new(),
        }
    }

    pub(super) fn of(&self, jumped: &Jumped) -> Option<CountingDetour> {
        let made = self.made.get(&jumped.key())?;
        Some(made.detour.clone())
    }

    /// Where the jumps that lead to a detour are, or have been.
    pub(super) fn originals(&self) -> impl Iterator<Item = Gva> {
        self.made.values().map(|made| made.jumped.at())
    }

    /// For each address at which a thread can be in a detour, where it would be without it.
    pub(super) fn ways_out(&self) -> impl Iterator<Item = (Gva, WayOut)> {
        self.made.values().flat_map(Made::ways_out)
    }

    /// Puts a detour together. It counts as made when [`keep`](Self::keep) is called.
    pub(super) fn assemble(
        &self,
        jumped: &Jumped,
        cells: &Cells,
    ) -> Result<NewDetour, DetourError> {
        let index = self.made.len() as u64;
        let offset_of_cell = index * CELL_BYTES;
        if offset_of_cell + CELL_BYTES > cells.bytes {
            return Err(DetourError::NoMoreDetours);
        }
        let offset = self.free.start;
        let entry = self.base.wrapping_add(offset as u64);
        let behind = |bytes: &Vec<u8>| {
            let len = bytes.len() + DISPLACEMENT_BYTES;
            entry.wrapping_add(len as u64)
        };
        let mut bytes = vec![PUSHFQ];
        bytes.extend(LOCK_INC);
        bytes.extend(displacement(
            behind(&bytes),
            cells.base.wrapping_add(offset_of_cell),
        )?);
        bytes.push(POPFQ);
        for decoded in jumped.instructions() {
            bytes.extend(decoded.bytes());
        }
        bytes.push(JUMP);
        bytes.extend(displacement(behind(&bytes), jumped.next())?);
        if bytes.len() > self.free.len() {
            return Err(DetourError::NoMoreDetours);
        }
        let detour = CountingDetour {
            entry,
            cell: Cell {
                memory: Arc::clone(&cells.memory),
                gpa: cells.gpa.wrapping_add(offset_of_cell),
            },
        };
        // What cannot be jumped to is not made.
        detour.jump_from(jumped.at())?;
        Ok(NewDetour {
            offset,
            bytes,
            detour,
        })
    }

    /// A detour has been written.
    pub(super) fn keep(&mut self, new: &NewDetour, jumped: &Jumped) {
        let end = new.offset + new.bytes.len();
        self.free.start = end.next_multiple_of(ALIGNMENT).min(self.free.end);
        self.made.insert(
            jumped.key(),
            Made {
                detour: new.detour.clone(),
                jumped: jumped.clone(),
            },
        );
    }
}

impl Made {
    fn ways_out(&self) -> Vec<(Gva, WayOut)> {
        let start = WayOut::plain(self.jumped.at());
        let pushed = WayOut {
            pops_flags: true,
            ..start
        };
        let mut at = self.detour.entry;
        let mut ways = Vec::new();
        let mut way = |len: usize, way: WayOut| {
            ways.push((at, way));
            at = at.wrapping_add(len as u64);
        };
        way(1, start);
        way(LOCK_INC.len() + DISPLACEMENT_BYTES, pushed);
        way(1, pushed);
        for decoded in self.jumped.instructions() {
            way(decoded.len(), WayOut::plain(decoded.at()));
        }
        way(1 + DISPLACEMENT_BYTES, WayOut::plain(self.jumped.next()));
        ways
    }
}

#[cfg(test)]
mod tests {
    use introspect::insn::decode;

    use super::*;
    use crate::guest::fake::FakeMemory;

    const BASE: Gva = Gva(0xffff_ffff_9000_0000);
    const DATA: Gva = Gva(0xffff_ffff_9020_0000);
    const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
    const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

    fn cells(bytes: u64) -> Cells {
        Cells {
            memory: Arc::new(FakeMemory::new(vec![0; 4096])),
            base: DATA,
            gpa: Gpa(0),
            bytes,
        }
    }

    fn nop(at: Gva) -> Jumped {
        let nop = decode(&NOP5, at).expect("an instruction");
        Jumped::new(nop, None).expect("room")
    }

    fn instructions(bytes: &[u8], at: Gva) -> Vec<Decoded> {
        let (mut done, mut found) = (0, Vec::new());
        while done < bytes.len() {
            let at = at.wrapping_add(done as u64);
            let decoded = decode(&bytes[done..], at).expect("an instruction");
            done += decoded.len();
            found.push(decoded);
        }
        found
    }

    #[test]
    fn a_detour_counts_executes_what_was_there_and_jumps_back() {
        let mut counting = Counting::new(BASE, 0x40..0x1000);
        let push = decode(&[0x55], TEXT.wrapping_add(5)).expect("an instruction");
        let nop = decode(&NOP5, TEXT).expect("an instruction");
        let jumped = Jumped::new(nop, Some(push)).expect("one behind the other");
        let new = counting
            .assemble(&jumped, &cells(4096))
            .expect("there is room");
        assert_eq!((new.offset, new.detour.entry), (0x40, Gva(BASE.0 + 0x40)));
        let code = instructions(&new.bytes, new.detour.entry);
        let texts: Vec<String> = code.iter().map(Decoded::text).collect();
        assert_eq!(
            texts[..],
            [
                "pushfq",
                "lock inc qword ptr [0xffffffff90200000]",
                "popfq",
                "nop dword ptr [rax+rax]",
                "push rbp",
                "jmp 0xffffffff81000006",
            ]
        );
        let jump = new.detour.jump_from(TEXT).expect("near enough");
        let jump = decode(&jump, TEXT).expect("a jump");
        assert_eq!(jump.branch_target(), Some(new.detour.entry));

        // There is a way out from each of its instructions.
        assert!(counting.of(&jumped).is_none());
        counting.keep(&new, &jumped);
        assert!(counting.of(&jumped).is_some());
        let ways: Vec<_> = counting.ways_out().collect();
        let places: Vec<_> = code.iter().map(Decoded::at).collect();
        assert_eq!(ways.iter().map(|(at, _)| *at).collect::<Vec<_>>(), places);
        let to: Vec<_> = ways
            .iter()
            .map(|(_, way)| (way.to.0 - TEXT.0, way.pops_flags))
            .collect();
        assert_eq!(
            to,
            [
                (0, false),
                (0, true),
                (0, true),
                (0, false),
                (5, false),
                (6, false)
            ]
        );
    }

    #[test]
    fn each_has_a_cell_of_its_own_until_there_is_no_room() {
        let mut counting = Counting::new(BASE, 0..0x1000);
        let cells = cells(3 * CELL_BYTES);
        let mut seen = Vec::new();
        for i in 0..3 {
            let jumped = nop(TEXT.wrapping_add(64 * i));
            let new = counting.assemble(&jumped, &cells).expect("room");
            seen.push((new.detour.cell.gpa, new.offset));
            counting.keep(&new, &jumped);
        }
        assert_eq!(seen, [(Gpa(0), 0), (Gpa(16), 32), (Gpa(32), 64)]);
        let full = counting.assemble(&nop(TEXT.wrapping_add(1000)), &cells);
        assert!(matches!(full, Err(DetourError::NoMoreDetours)), "{full:?}");

        let counting = Counting::new(BASE, 0..8);
        let full = counting.assemble(&nop(TEXT), &cells);
        assert!(matches!(full, Err(DetourError::NoMoreDetours)), "{full:?}");
    }

    #[test]
    fn what_is_too_far_or_too_short_is_not_jumped_over() {
        let counting = Counting::new(BASE, 0..0x1000);
        let far = counting.assemble(&nop(Gva(0x10_0000_0000)), &cells(4096));
        assert!(matches!(far, Err(DetourError::TooFar)), "{far:?}");
        let push = decode(&[0x55], TEXT).expect("an instruction");
        assert_eq!(Jumped::new(push, None), None);
        let nop = decode(&NOP5, TEXT).expect("an instruction");
        assert_eq!(Jumped::new(nop, Some(push)), None, "not behind it");
    }
}
