//! The detours of a region: what the jumps of optimised probes lead to.

use std::collections::HashMap;

use introspect::Gva;

use super::DetourError;
use super::cells::{Cells, Words};
use super::code::{Code, Does, Exit, Of, Processor, Work, assemble};
use super::jumped::{Jumped, Lead};
use crate::WhenFull;
use crate::plant::Jump;
use crate::program::{Aggregate, Filter};

/// `jmp rel32`.
const JUMP: u8 = 0xe9;
const NEAR_BYTES: u64 = 5;

/// What a part of a detour is for: one probe, or the calls that return to its site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Use {
    /// Only hits for which this holds.
    pub(crate) filter: Option<Filter>,
    pub(crate) keeps: Keeps,
    pub(crate) when_full: WhenFull,
    pub(crate) processor: Processor,
    /// What leaves the guest.
    pub(crate) plant: u8,
    /// Which it is of several at one site that are alike in the rest.
    pub(crate) index: usize,
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
    /// The same at the entry of a function where returns to a static call show: with what is on top of the stack.
    EntryReturns,
    /// The same of calls that are followed to their return.
    Calls,
    /// Nothing: it leaves the guest.
    Exits,
}

impl Use {
    /// How many words it takes.
    pub(super) const fn words(&self) -> usize {
        match (&self.keeps, self.when_full) {
            (Keeps::Count, _) | (Keeps::Records | Keeps::Calls, WhenFull::Drop) => 1,
            (Keeps::Aggregate(aggregate), _) => aggregate.words(),
            (Keeps::Records | Keeps::Calls, WhenFull::Exit)
            | (Keeps::Returns | Keeps::EntryReturns | Keeps::Exits, _) => 0,
        }
    }

    /// What `part`, which is for it, does.
    fn work(&self, part: &Part, ring: Option<Gva>) -> Result<Work<'_>, DetourError> {
        let does = match &self.keeps {
            Keeps::Count => Does::Count(part.words_at),
            Keeps::Aggregate(aggregate) => Does::Aggregate(aggregate, part.words_at),
            Keeps::Records | Keeps::Calls | Keeps::Returns | Keeps::EntryReturns => Does::Record {
                ring: ring.ok_or(DetourError::NoPlace)?,
                who: part.who,
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

    /// Whether it leaves records.
    pub(super) const fn records(&self) -> bool {
        matches!(
            self.keeps,
            Keeps::Records | Keeps::Calls | Keeps::Returns | Keeps::EntryReturns
        )
    }
}

/// A part of detours: what they do for one probe, or for the calls that return to their site. All detours of a site that have
/// a part for the same use have the same part.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its number: records, and exits, say it.
    pub(crate) who: u32,
    /// Where it counts, if it does: hits, or records that it had no room for.
    pub(crate) words: Option<Words>,
    /// Where the guest's kernel finds these.
    words_at: Gva,
}

/// A detour.
#[derive(Clone, Debug)]
pub(crate) struct MadeDetour {
    /// Its first instruction.
    pub(crate) entry: Gva,
    /// In the order in which they are executed.
    pub(crate) parts: Vec<Part>,
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
    /// The number of the part whose exit it is.
    pub(crate) who: u32,
    /// Where it goes on: with the next part, or the displaced instructions.
    pub(crate) on: Gva,
}

/// A detour to be written at its entry.
#[derive(Debug)]
pub(super) struct NewDetour {
    pub(super) code: Code,
    pub(super) detour: MadeDetour,
}

/// Where the jump is, what it displaces, and what is done there, in order.
type Key = (Gva, Vec<u8>, Vec<Use>);

/// So many detours are made at one site while a guest runs. Each order of probes there has its own, and so has each
/// filter: a client that changes them without end must not use up what other sites need.
const MAX_DETOURS_OF_A_SITE: usize = 1024;

/// The detours of a region. A detour that has been made stays as long as the guest runs, since a thread may be in it at any
/// time; the same jump for the same uses finds it again.
///
/// A part belongs to its site, not to one detour: when probes come to a site and go, another detour takes over, and a thread
/// that is still in the one before counts and records for the same probes.
#[derive(Debug, Default)]
pub(super) struct Detours {
    parts: HashMap<(Gva, Use), Part>,
    made: HashMap<Key, MadeDetour>,
    /// How many there are at each site.
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

    /// Whose exit is at `at`.
    pub(super) fn left_at(&self, at: Gva) -> Option<LeftAt> {
        self.exits.get(&at).copied()
    }

    /// The part for `usage` at `site`, if it has been made.
    pub(super) fn part(&self, site: Gva, usage: &Use) -> Option<&Part> {
        self.parts.get(&(site, usage.clone()))
    }

    /// Another part for `usage`, with words of `cells`; `ahead` are made with it and not kept yet. It counts as made when a
    /// detour is kept that has it.
    pub(super) fn new_part(
        &self,
        usage: &Use,
        ahead: usize,
        cells: &mut Cells,
    ) -> Result<Part, DetourError> {
        let who = self.parts.len() + ahead + 1;
        let who = u32::try_from(who).map_err(|_| DetourError::Full)?;
        let (words_at, words) = match usage.words() {
            0 => (Gva(0), None),
            words => {
                let (at, words) = cells.next(words)?;
                cells.keep(&words);
                (at, Some(words))
            }
        };
        Ok(Part {
            who,
            words,
            words_at,
        })
    }

    /// Whether another detour may be made at `site`.
    pub(super) fn has_room_at(&self, site: Gva) -> bool {
        let made = self.made_at.get(&site).copied().unwrap_or(0);
        made < MAX_DETOURS_OF_A_SITE
    }

    /// Puts a detour together for `entry`, of `parts`, which are for `uses`. It counts as made when [`keep`](Self::keep) is
    /// called.
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
        // What cannot be jumped to is not made.
        if jumped.lead() == Lead::Jump {
            detour.jump_from(jumped.at())?;
        }
        Ok(NewDetour { code, detour })
    }

    /// A detour has been written.
    pub(super) fn keep(&mut self, new: NewDetour, jumped: &Jumped, uses: &[Use]) -> MadeDetour {
        for (exit, part) in new.code.exits.iter().zip(&new.detour.parts) {
            if let Some(Exit { at, on }) = *exit {
                let who = part.who;
                self.exits.insert(at, LeftAt { who, on });
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

    use introspect::Gpa;
    use introspect::insn::{Decoded, decode};

    use super::*;
    use crate::guest::fake::FakeMemory;

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

    impl Detours {
        /// With parts that are made if there are none yet.
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
        // Two ends pop what one beginning has pushed.
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
        assert_eq!(left.who, 1);
        // No more than 60 for a record, the jump and the displaced instructions included.
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
            seen.push((part.words.clone().expect("it counts"), part.who));
        }
        let at = |index: usize| cells_of(&seen[index].0);
        assert_eq!([at(0), at(1), at(2)], [0, 16, 32]);
        assert!(seen.iter().map(|(_, who)| *who).eq([1, 2, 3]));
        let jumped = nop(TEXT.wrapping_add(1000));
        let full = detours.new_at(&jumped, &count, &mut cells, None);
        assert!(matches!(full, Err(DetourError::Full)), "{full:?}");
        assert!(!cells.has_room(1));
    }

    /// Where words are, from the beginning.
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
