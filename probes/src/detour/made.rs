//! The detours of a region: what the jumps of optimised probes lead to.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use introspect::Gva;

use super::cells::{Cells, Words};
use super::code::{Code, Does, Exit, Of, Processor, Work, assemble};
use super::jumped::{Jumped, Lead};
use super::{DetourError, WayOut};
use crate::WhenFull;
use crate::plant::Jump;
use crate::program::{Aggregate, Filter};

/// Detours begin at multiples of this.
const ALIGNMENT: usize = 16;
/// `jmp rel32`.
const JUMP: u8 = 0xe9;
const NEAR_BYTES: u64 = 5;

/// What a detour is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Use {
    /// Only hits for which this holds.
    pub(crate) filter: Option<Filter>,
    pub(crate) keeps: Keeps,
    pub(crate) when_full: WhenFull,
    pub(crate) processor: Processor,
    /// What leaves the guest.
    pub(crate) plant: u8,
}

/// What a detour keeps of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Keeps {
    /// Their number, in a word.
    Count,
    /// What becomes of a value, in words.
    Aggregate(Aggregate),
    /// A record of each, in the ring.
    Records,
    /// The same where followed calls return to.
    Returns,
    /// The same of calls that are followed to their return.
    Calls,
    /// Nothing: it leaves the guest.
    Exits,
}

impl Use {
    /// How many words it takes.
    const fn words(&self) -> usize {
        match (&self.keeps, self.when_full) {
            (Keeps::Count, _) | (Keeps::Records | Keeps::Calls, WhenFull::Drop) => 1,
            (Keeps::Aggregate(aggregate), _) => aggregate.words(),
            (Keeps::Records | Keeps::Calls, WhenFull::Exit)
            | (Keeps::Returns | Keeps::Exits, _) => 0,
        }
    }
}

/// A detour.
#[derive(Clone, Debug)]
pub(crate) struct MadeDetour {
    /// Its first instruction.
    pub(crate) entry: Gva,
    /// Its number: records, and exits, say it.
    pub(crate) who: u32,
    /// Where it counts, if it does: hits, or records that it had no room for.
    pub(crate) words: Option<Words>,
}

impl MadeDetour {
    /// The jump that leads to it from `at`.
    ///
    /// # Errors
    ///
    /// When it is too far away.
    pub(crate) fn jump_from(&self, at: Gva) -> Result<Jump, DetourError> {
        near_jump(at, self.entry)
    }
}

/// A jump at `at` that leads to `to`.
pub(super) fn near_jump(at: Gva, to: Gva) -> Result<Jump, DetourError> {
    let behind = at.wrapping_add(NEAR_BYTES);
    let distance = to.0.wrapping_sub(behind.0).cast_signed();
    let distance = i32::try_from(distance).map_err(|_| DetourError::TooFar)?;
    let [a, b, c, d] = distance.to_le_bytes();
    Ok(Jump::Near([JUMP, a, b, c, d]))
}

/// Where a vCPU that has left the guest in a detour belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftAt {
    /// The number of the detour.
    pub(crate) who: u32,
    /// Where it goes on.
    pub(crate) on: Gva,
}

/// A detour to be written.
#[derive(Debug)]
pub(super) struct NewDetour {
    /// From the beginning of the region.
    pub(super) offset: usize,
    pub(super) code: Code,
    pub(super) detour: MadeDetour,
}

type Key = (Gva, Vec<u8>, Use);

/// The detours of a region. As with copies, one that has been made stays until the whole region is evacuated; the same
/// jump finds it again, and its cell counts on.
#[derive(Debug)]
pub(super) struct Detours {
    base: Gva,
    /// What is free of the region, from its beginning.
    free: Range<usize>,
    made: HashMap<Key, Made>,
    exits: BTreeMap<Gva, LeftAt>,
}

#[derive(Debug)]
struct Made {
    detour: MadeDetour,
    jump: Gva,
    ways_out: Vec<(Gva, WayOut)>,
}

fn key(jumped: &Jumped, usage: &Use) -> Key {
    (jumped.at(), jumped.bytes(), usage.clone())
}

impl Detours {
    /// For a region that begins at `base`, in `room` of it.
    pub(super) fn new(base: Gva, room: Range<usize>) -> Self {
        Self {
            base,
            free: room,
            made: HashMap::new(),
            exits: BTreeMap::new(),
        }
    }

    pub(super) fn of(&self, jumped: &Jumped, usage: &Use) -> Option<MadeDetour> {
        let made = self.made.get(&key(jumped, usage))?;
        Some(made.detour.clone())
    }

    /// Where the jumps that lead to a detour are, or have been.
    pub(super) fn originals(&self) -> impl Iterator<Item = Gva> {
        self.made.values().map(|made| made.jump)
    }

    /// For each address at which a thread can be in a detour, where it would be without it.
    pub(super) fn ways_out(&self) -> impl Iterator<Item = (Gva, WayOut)> {
        self.made
            .values()
            .flat_map(|made| made.ways_out.iter().copied())
    }

    /// Whose exit is at `at`.
    pub(super) fn left_at(&self, at: Gva) -> Option<LeftAt> {
        self.exits.get(&at).copied()
    }

    /// Puts a detour together. It counts as made when [`keep`](Self::keep) is called.
    pub(super) fn assemble(
        &self,
        jumped: &Jumped,
        usage: &Use,
        cells: &Cells,
        ring: Option<Gva>,
    ) -> Result<NewDetour, DetourError> {
        let offset = self.free.start;
        let entry = self.base.wrapping_add(offset as u64);
        let who = u32::try_from(self.made.len() + 1).map_err(|_| DetourError::NoMoreDetours)?;
        let words = match usage.words() {
            0 => None,
            words => Some(cells.next(words)?),
        };
        let at = words.as_ref().map_or(Gva(0), |(at, _)| *at);
        let does = match &usage.keeps {
            Keeps::Count => Does::Count(at),
            Keeps::Aggregate(aggregate) => Does::Aggregate(aggregate, at),
            Keeps::Records | Keeps::Calls | Keeps::Returns => Does::Record {
                ring: ring.ok_or(DetourError::NoPlace)?,
                who,
                of: if usage.keeps == Keeps::Calls {
                    Of::Call
                } else {
                    Of::Hit
                },
                dropped: words.as_ref().map(|(at, _)| *at),
            },
            Keeps::Exits => Does::Exit,
        };
        let work = Work {
            filter: usage.filter.as_ref(),
            does,
            processor: usage.processor,
            plant: usage.plant,
        };
        let code = assemble(jumped, &work, entry)?;
        if code.bytes.len() > self.free.len() {
            return Err(DetourError::NoMoreDetours);
        }
        let words = words.map(|(_, words)| words);
        let detour = MadeDetour { entry, who, words };
        // What cannot be jumped to is not made.
        if jumped.lead() == Lead::Jump {
            detour.jump_from(jumped.at())?;
        }
        Ok(NewDetour {
            offset,
            code,
            detour,
        })
    }

    /// A detour has been written.
    pub(super) fn keep(
        &mut self,
        new: NewDetour,
        jumped: &Jumped,
        usage: &Use,
        cells: &mut Cells,
    ) -> MadeDetour {
        let end = new.offset + new.code.bytes.len();
        self.free.start = end.next_multiple_of(ALIGNMENT).min(self.free.end);
        if let Some(words) = &new.detour.words {
            cells.keep(words);
        }
        if let Some(Exit { at, on }) = new.code.exit {
            let who = new.detour.who;
            self.exits.insert(at, LeftAt { who, on });
        }
        self.made.insert(
            key(jumped, usage),
            Made {
                detour: new.detour.clone(),
                jump: jumped.at(),
                ways_out: new.code.ways_out,
            },
        );
        new.detour
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use introspect::Gpa;
    use introspect::insn::{Decoded, decode};
    use vmm::Pop;

    use super::*;
    use crate::detour::Leaves;
    use crate::guest::fake::FakeMemory;

    const BASE: Gva = Gva(0xffff_ffff_9000_0000);
    const DATA: Gva = Gva(0xffff_ffff_9020_0000);
    const RING: Gva = Gva(0xffff_ffff_9040_0000);
    const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
    const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

    fn keeping(keeps: Keeps) -> Use {
        Use {
            filter: None,
            keeps,
            when_full: WhenFull::Exit,
            processor: Processor {
                number: Some(0x1_fb80),
                task: None,
            },
            plant: 0xee,
        }
    }

    fn cells(bytes: u64) -> Cells {
        Cells {
            memory: Arc::new(FakeMemory::new(vec![0; 4096])),
            base: DATA,
            gpa: Gpa(0),
            bytes,
            given: 0,
        }
    }

    fn nop(at: Gva) -> Jumped {
        let nop = decode(&NOP5, at).expect("an instruction");
        Jumped::new(nop, None).expect("room")
    }

    /// What is left of a call, and `push rbp` behind it.
    fn traced() -> Jumped {
        let push = decode(&[0x55], TEXT.wrapping_add(5)).expect("an instruction");
        let nop = decode(&NOP5, TEXT).expect("an instruction");
        Jumped::new(nop, Some(push)).expect("one behind the other")
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
        let mut detours = Detours::new(BASE, 0x40..0x1000);
        let (jumped, mut cells) = (traced(), cells(4096));
        let [count, record] = [Keeps::Count, Keeps::Records].map(keeping);
        let new = detours
            .assemble(&jumped, &count, &cells, None)
            .expect("there is room");
        assert_eq!((new.offset, new.detour.entry), (0x40, Gva(BASE.0 + 0x40)));
        let code = instructions(&new.code.bytes, new.detour.entry);
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
        let jump = decode(jump.bytes(), TEXT).expect("a jump");
        assert_eq!(jump.branch_target(), Some(new.detour.entry));

        // There is a way out from each of its instructions.
        assert!(detours.of(&jumped, &count).is_none());
        detours.keep(new, &jumped, &count, &mut cells);
        assert!(detours.of(&jumped, &count).is_some());
        assert!(detours.of(&jumped, &record).is_none());
        let ways: Vec<_> = detours.ways_out().collect();
        let places: Vec<_> = code.iter().map(Decoded::at).collect();
        assert_eq!(ways.iter().map(|(at, _)| *at).collect::<Vec<_>>(), places);
        let to: Vec<_> = ways
            .iter()
            .map(|(_, way)| (way.to.0 - TEXT.0, way.pops.len(), way.leaves))
            .collect();
        let (moved, on) = (Leaves::Moved, Leaves::RunningOn);
        assert_eq!(to[..3], [(0, 0, moved), (0, 1, moved), (0, 1, on)]);
        assert_eq!(to[3..], [(0, 0, on), (5, 0, on), (6, 0, moved)]);
    }

    #[test]
    fn one_that_records_can_be_left_from_each_of_its_instructions() {
        let mut detours = Detours::new(BASE, 0x40..0x1000);
        let (jumped, mut cells) = (traced(), cells(4096));
        let record = keeping(Keeps::Records);
        let new = detours
            .assemble(&jumped, &record, &cells, Some(RING))
            .expect("there is room");
        let code = instructions(&new.code.bytes, new.detour.entry);
        let exit = new.code.exit.expect("it can be full");
        detours.keep(new, &jumped, &record, &mut cells);
        let ways: BTreeMap<_, _> = detours.ways_out().collect();
        assert_eq!(ways.len(), code.len());
        // What is on the stack is what the instructions before have pushed.
        let mut pushed = Vec::new();
        let mut is_behind = false;
        for decoded in &code {
            let way = ways[&decoded.at()];
            if !is_behind && way.to == TEXT {
                let popped: Vec<Pop> = pushed.iter().rev().copied().collect();
                assert_eq!(way.pops, popped, "{}", decoded.text());
            }
            match &decoded.text()[..] {
                "pushfq" => pushed.push(Pop::Flags),
                "push rax" => pushed.push(Pop::Rax),
                "push rcx" => pushed.push(Pop::Rcx),
                "push rdx" => pushed.push(Pop::Rdx),
                "popfq" => drop(pushed.pop()),
                text if text.starts_with("pop ") => drop(pushed.pop()),
                // The other end follows, where all is pushed again.
                text if text.starts_with("jmp") => is_behind = true,
                _ => (),
            }
        }
        assert!(pushed.is_empty());
        // Who is behind the record is not moved before what was there; nor is a vCPU whose hit is told at the exit.
        let leaves = |decoded: &Decoded| ways[&decoded.at()].leaves;
        let changes: Vec<_> = code
            .windows(2)
            .filter(|two| leaves(&two[0]) != leaves(&two[1]))
            .map(|two| two[0].text())
            .collect();
        assert_eq!(leaves(&code[0]), Leaves::Moved);
        assert_eq!(changes, ["mov [rcx], eax", "push rbp", "popfq"]);
        let left = detours.left_at(exit.at).expect("it is known");
        let counted = WayOut::plain(TEXT, Leaves::RunningOn);
        assert_eq!((left.who, ways[&left.on]), (1, counted));
        assert_eq!(ways[&exit.at], counted);
        // As the target says: no more than 60 for a record, the jump and what was there included.
        let taken = code.iter().take_while(|decoded| decoded.at() != exit.at);
        let restores = 4;
        assert!(1 + taken.count() - restores <= 60);
    }

    #[test]
    fn each_has_words_of_its_own_until_there_is_no_room() {
        let mut detours = Detours::new(BASE, 0..0x1000);
        let mut cells = cells(3 * ALIGNMENT as u64);
        let count = keeping(Keeps::Count);
        let mut seen = Vec::new();
        for i in 0..3 {
            let jumped = nop(TEXT.wrapping_add(64 * i));
            let new = detours
                .assemble(&jumped, &count, &cells, None)
                .expect("room");
            let offset = new.offset;
            let made = detours.keep(new, &jumped, &count, &mut cells);
            seen.push((made.words.expect("it counts"), made.who, offset));
        }
        let at = |index: usize| cells_of(&seen[index].0);
        assert_eq!([at(0), at(1), at(2)], [0, 16, 32]);
        assert!(
            seen.iter()
                .map(|(_, who, offset)| (*who, *offset))
                .eq([(1, 0), (2, 32), (3, 64)])
        );
        let jumped = nop(TEXT.wrapping_add(1000));
        let full = detours.assemble(&jumped, &count, &cells, None);
        assert!(matches!(full, Err(DetourError::NoMoreDetours)), "{full:?}");

        let detours = Detours::new(BASE, 0..8);
        let full = detours.assemble(&nop(TEXT), &count, &self::cells(4096), None);
        assert!(matches!(full, Err(DetourError::NoMoreDetours)), "{full:?}");
    }

    /// Where words are, from the beginning.
    fn cells_of(words: &Words) -> u64 {
        let text = format!("{words:?}");
        (0..64)
            .find(|at| text.contains(&format!("{:?}", Gpa(*at))))
            .expect("it is told")
    }

    #[test]
    fn what_is_too_far_or_too_short_is_not_jumped_over() {
        let detours = Detours::new(BASE, 0..0x1000);
        let far = nop(Gva(0x10_0000_0000));
        let far = detours.assemble(&far, &keeping(Keeps::Count), &cells(4096), None);
        assert!(matches!(far, Err(DetourError::TooFar)), "{far:?}");
        let push = decode(&[0x55], TEXT).expect("an instruction");
        assert_eq!(Jumped::new(push, None), None);
        let nop = decode(&NOP5, TEXT).expect("an instruction");
        assert_eq!(Jumped::new(nop, Some(push)), None, "not behind it");
    }
}
