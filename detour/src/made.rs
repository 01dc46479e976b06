//! The detours of a region: the targets of optimised probes' jumps.

use std::collections::HashMap;

use address::Gva;
use introspect::optimise::JUMP_BYTES;
use manifest::WhenFull;
use manifest::program::{Aggregate, Filter};
use text::Jump;

use super::DetourError;
use super::cells::{Cells, Words};
use super::code::{Code, Does, Exit, Of, Work, assemble};
use super::jumped::{Jumped, Lead};
use super::processor::Processor;

/// `jmp rel32`.
const JUMP: u8 = 0xe9;

/// The use of a detour part: one probe, or the calls that return to the site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// The part handles only hits that the filter accepts.
    pub filter: Option<Filter>,
    /// The action at a hit.
    pub keeps: Keeps,
    /// The effect of a hit if the ring has no room for its record.
    pub when_full: WhenFull,
    /// The offsets of the per-processor variables that the part reads.
    pub processor: Processor,
    /// The byte that exits.
    pub plant: u8,
    /// The index among several uses at one site that are otherwise equal.
    pub index: usize,
}

/// The action of a detour part at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keeps {
    /// Count hits, in one counter.
    Count,
    /// Aggregate a value, in counters.
    Aggregate(Aggregate),
    /// Write a record of each hit to the ring.
    Records,
    /// Write a record where followed calls return.
    Returns,
    /// Write a record at a function's entry, as a landing of returns to a static call: with the top of the stack.
    EntryReturns,
    /// Write a record of each call that is followed to its return.
    Calls,
    /// Exit.
    Exits,
}

impl Use {
    /// The number of counters needed.
    pub(super) const fn words(&self) -> usize {
        match (&self.keeps, self.when_full) {
            (Keeps::Count, _) | (Keeps::Records | Keeps::Calls, WhenFull::Drop) => 1,
            (Keeps::Aggregate(aggregate), _) => aggregate.words(),
            (Keeps::Records | Keeps::Calls, WhenFull::Exit)
            | (Keeps::Returns | Keeps::EntryReturns | Keeps::Exits, _) => 0,
        }
    }

    /// The work of `part`, which was made for this use.
    fn work(&self, part: &Part, ring: Option<Gva>) -> Result<Work<'_>, DetourError> {
        let does = match &self.keeps {
            Keeps::Count => Does::Count(part.words_at),
            Keeps::Aggregate(aggregate) => Does::Aggregate(aggregate, part.words_at),
            Keeps::Records | Keeps::Calls | Keeps::Returns | Keeps::EntryReturns => Does::Record {
                ring: ring.ok_or(DetourError::NoPlace)?,
                part_number: part.part_number,
                of: match self.keeps {
                    Keeps::Calls => Of::Call,
                    Keeps::EntryReturns => Of::Entry,
                    _ => Of::Hit,
                },
                dropped: part.words.as_ref().map(|_| part.words_at),
            },
            Keeps::Exits => Does::Exit,
        };
        Ok(Work {
            filter: self.filter.as_ref(),
            does,
            processor: self.processor,
            plant: self.plant,
        })
    }

    /// Whether the part writes records.
    pub(super) const fn records(&self) -> bool {
        matches!(
            self.keeps,
            Keeps::Records | Keeps::Calls | Keeps::Returns | Keeps::EntryReturns
        )
    }
}

/// A part of a site's detours: the work for one probe, or for the calls that return to the site. All detours of a site share the
/// part for a given use.
#[derive(Clone, Debug)]
pub struct Part {
    /// The part's number; records and exits carry it.
    pub part_number: u32,
    /// The counters, if any: of hits, or of records dropped because the ring was full.
    pub words: Option<Words>,
    /// The counters' address in the guest's kernel.
    words_at: Gva,
}

/// A detour in the region.
#[derive(Clone, Debug)]
pub struct MadeDetour {
    /// The address of the first instruction.
    pub entry: Gva,
    /// The parts, in order of execution.
    pub parts: Vec<Part>,
}

impl MadeDetour {
    /// The jump from `at` to the detour.
    ///
    /// # Errors
    ///
    /// If the detour is too far away.
    pub fn jump_from(&self, at: Gva) -> Result<Jump, DetourError> {
        near_jump(at, self.entry)
    }
}

/// A jump at `at` to `to`.
pub(super) fn near_jump(at: Gva, to: Gva) -> Result<Jump, DetourError> {
    let behind = at.wrapping_add(JUMP_BYTES as u64);
    let distance = to.0.wrapping_sub(behind.0).cast_signed();
    let distance = i32::try_from(distance).map_err(|_| DetourError::TooFar)?;
    let [a, b, c, d] = distance.to_le_bytes();
    Ok(Jump::Near([JUMP, a, b, c, d]))
}

/// The exit of a detour part, for a vCPU that exited there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAt {
    /// The number of the exiting part.
    pub part_number: u32,
    /// The address to resume at: the next part, or the displaced instructions.
    pub on: Gva,
}

/// A detour to be written at its entry.
#[derive(Debug)]
pub(super) struct NewDetour {
    pub(super) code: Code,
    pub(super) detour: MadeDetour,
}

/// The jump's address, the displaced bytes, and the uses of the parts, in order.
type Key = (Gva, Vec<u8>, Vec<Use>);

/// The maximum number of detours at one site while a guest runs. Each order of probes and each filter takes a detour: a client
/// that changes them without end must not exhaust the memory for other sites.
const MAX_DETOURS_OF_A_SITE: usize = 1024;

/// The detours of a region. A detour stays as long as the guest runs, since a thread may be inside at any time; the same jump for
/// the same uses finds the existing detour.
///
/// A part belongs to its site, not to one detour. When probes are added or removed at a site, another detour takes over, and a
/// thread still in the former detour counts and records for the same probes.
#[derive(Debug, Default)]
pub(super) struct Detours {
    parts: HashMap<(Gva, Use), Part>,
    made: HashMap<Key, MadeDetour>,
    /// The number of detours at each site.
    made_at: HashMap<Gva, usize>,
    exits: HashMap<Gva, LeftAt>,
}

fn key(jumped: &Jumped, uses: &[Use]) -> Key {
    (jumped.at(), jumped.bytes(), uses.to_vec())
}

impl Detours {
    pub(super) fn of(&self, jumped: &Jumped, uses: &[Use]) -> Option<MadeDetour> {
        self.made.get(&key(jumped, uses)).cloned()
    }

    /// The part whose exit is at `at`.
    pub(super) fn left_at(&self, at: Gva) -> Option<LeftAt> {
        self.exits.get(&at).copied()
    }

    /// The part for `usage` at `site`, if made.
    pub(super) fn part(&self, site: Gva, usage: &Use) -> Option<&Part> {
        self.parts.get(&(site, usage.clone()))
    }

    /// Another part for `usage`, with counters from `cells`. `ahead` further parts are made for the same detour and not kept yet.
    /// The part counts as made when a detour with the part is kept.
    pub(super) fn new_part(
        &self,
        usage: &Use,
        ahead: usize,
        cells: &mut Cells,
    ) -> Result<Part, DetourError> {
        let part_number = self.parts.len() + ahead + 1;
        let part_number = u32::try_from(part_number).map_err(|_| DetourError::Full)?;
        let (words_at, words) = match usage.words() {
            0 => (Gva(0), None),
            words => {
                let (at, words) = cells.next(words)?;
                cells.keep(&words);
                (at, Some(words))
            }
        };
        Ok(Part {
            part_number,
            words,
            words_at,
        })
    }

    /// Whether another detour may be made at `site`.
    pub(super) fn has_room_at(&self, site: Gva) -> bool {
        let made = self.made_at.get(&site).copied().unwrap_or(0);
        made < MAX_DETOURS_OF_A_SITE
    }

    /// Assembles a detour at `entry` from `parts`, which were made for `uses`. The detour counts as made when
    /// [`keep`](Self::keep) is called.
    pub(super) fn assemble(
        jumped: &Jumped,
        uses: &[Use],
        parts: Vec<Part>,
        entry: Gva,
        ring: Option<Gva>,
    ) -> Result<NewDetour, DetourError> {
        let works = uses.iter().zip(&parts);
        let works = works.map(|(usage, part)| usage.work(part, ring));
        let works = works.collect::<Result<Vec<_>, _>>()?;
        let code = assemble(jumped, &works, entry)?;
        let detour = MadeDetour { entry, parts };
        // A detour out of the jump's reach is not made.
        if jumped.lead() == Lead::Jump {
            detour.jump_from(jumped.at())?;
        }
        Ok(NewDetour { code, detour })
    }

    /// Remembers a detour that has been written.
    pub(super) fn keep(&mut self, new: NewDetour, jumped: &Jumped, uses: &[Use]) -> MadeDetour {
        for (exit, part) in new.code.exits.iter().zip(&new.detour.parts) {
            if let Some(Exit { at, on }) = *exit {
                let part_number = part.part_number;
                self.exits.insert(at, LeftAt { part_number, on });
            }
        }
        let site = jumped.site();
        for (usage, part) in uses.iter().zip(&new.detour.parts) {
            let part = || part.clone();
            self.parts.entry((site, usage.clone())).or_insert_with(part);
        }
        *self.made_at.entry(site).or_default() += 1;
        self.made.insert(key(jumped, uses), new.detour.clone());
        new.detour
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use address::Gpa;
    use introspect::insn::{Decoded, decode};
    use text::testing::FakeMemory;

    use super::*;

    const ENTRY: Gva = Gva(0xffff_ffff_9000_0040);
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
                fields: None,
            },
            plant: 0xee,
            index: 0,
        }
    }

    fn cells(bytes: u64) -> Cells {
        let memory = Arc::new(FakeMemory::new(vec![0; 4096]));
        Cells::on(memory, DATA, Gpa(0), bytes)
    }

    fn nop(at: Gva) -> Jumped {
        let nop = decode(&NOP5, at).expect("an instruction");
        Jumped::new(nop, None).expect("room")
    }

    /// The nop of an ftrace call, and `push rbp` behind the nop.
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

    impl Detours {
        /// Assembles a detour at `ENTRY`, and makes missing parts.
        fn new_at(
            &mut self,
            jumped: &Jumped,
            uses: &[Use],
            cells: &mut Cells,
            ring: Option<Gva>,
        ) -> Result<NewDetour, DetourError> {
            let site = jumped.site();
            let (mut parts, mut ahead) = (Vec::new(), 0);
            for usage in uses {
                parts.push(match self.part(site, usage) {
                    Some(part) => part.clone(),
                    None => {
                        ahead += 1;
                        self.new_part(usage, ahead - 1, cells)?
                    }
                });
            }
            Self::assemble(jumped, uses, parts, ENTRY, ring)
        }
    }

    #[test]
    fn detour_counts_executes_displaced_instructions_and_jumps_back() {
        let mut detours = Detours::default();
        let (jumped, mut cells) = (traced(), cells(4096));
        let [count, record] = [Keeps::Count, Keeps::Records].map(|keeps| [keeping(keeps)]);
        let new = detours
            .new_at(&jumped, &count, &mut cells, None)
            .expect("there is room");
        assert_eq!(new.detour.entry, ENTRY);
        let code = instructions(&new.code.bytes, ENTRY);
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
        assert!(detours.of(&jumped, &count).is_none());
        detours.keep(new, &jumped, &count);
        assert!(detours.of(&jumped, &count).is_some());
        assert!(detours.of(&jumped, &record).is_none());
    }

    #[test]
    fn recording_detour_balances_the_stack_and_exits_before_displaced_instructions() {
        let mut detours = Detours::default();
        let (jumped, mut cells) = (traced(), cells(4096));
        let record = [keeping(Keeps::Records)];
        let new = detours
            .new_at(&jumped, &record, &mut cells, Some(RING))
            .expect("there is room");
        let code = instructions(&new.code.bytes, ENTRY);
        let exit = new.code.exits[0].expect("it can be full");
        detours.keep(new, &jumped, &record);
        // Two ends pop the registers pushed by one beginning.
        let texts: Vec<String> = code.iter().map(Decoded::text).collect();
        let count = |wanted: &str| texts.iter().filter(|text| *text == wanted).count();
        for register in ["rax", "rcx", "rdx"] {
            assert_eq!(count(&format!("push {register}")), 1);
            assert_eq!(count(&format!("pop {register}")), 2);
        }
        assert_eq!((count("pushfq"), count("popfq")), (1, 2));
        let left = detours.left_at(exit.at).expect("it is known");
        let on = code.iter().find(|decoded| decoded.at() == left.on);
        assert_eq!(on.map(Decoded::bytes), Some(&NOP5[..]));
        assert_eq!(left.part_number, 1);
        // A record takes at most 60 instructions, the jump and the displaced instructions included.
        let taken = code.iter().take_while(|decoded| decoded.at() != exit.at);
        let restores = 4;
        assert!(1 + taken.count() - restores <= 60);
    }

    #[test]
    fn each_detour_has_words_of_its_own_until_there_is_no_room() {
        let mut detours = Detours::default();
        let mut cells = cells(3 * 16);
        let count = [keeping(Keeps::Count)];
        let mut seen = Vec::new();
        for i in 0..3 {
            let jumped = nop(TEXT.wrapping_add(64 * i));
            assert!(cells.has_room(1));
            let new = detours
                .new_at(&jumped, &count, &mut cells, None)
                .expect("room");
            let [part] = &detours.keep(new, &jumped, &count).parts[..] else {
                panic!("one part");
            };
            seen.push((part.words.clone().expect("it counts"), part.part_number));
        }
        let at = |index: usize| cells_of(&seen[index].0);
        assert_eq!([at(0), at(1), at(2)], [0, 16, 32]);
        assert!(
            seen.iter()
                .map(|(_, part_number)| *part_number)
                .eq([1, 2, 3])
        );
        let jumped = nop(TEXT.wrapping_add(1000));
        let full = detours.new_at(&jumped, &count, &mut cells, None);
        assert!(matches!(full, Err(DetourError::Full)), "{full:?}");
        assert!(!cells.has_room(1));
    }

    /// The offset of `words` from the beginning of the page.
    fn cells_of(words: &Words) -> u64 {
        let text = format!("{words:?}");
        (0..64)
            .find(|at| text.contains(&format!("{:?}", Gpa(*at))))
            .expect("it is told")
    }

    #[test]
    fn distant_or_short_instruction_is_not_jumped_over() {
        let mut detours = Detours::default();
        let far = nop(Gva(0x10_0000_0000));
        let far = detours.new_at(&far, &[keeping(Keeps::Count)], &mut cells(4096), None);
        assert!(matches!(far, Err(DetourError::TooFar)), "{far:?}");
        let push = decode(&[0x55], TEXT).expect("an instruction");
        assert_eq!(Jumped::new(push, None), None);
        let nop = decode(&NOP5, TEXT).expect("an instruction");
        assert_eq!(Jumped::new(nop, Some(push)), None, "not behind it");
    }
}
