//! The marks of a program's file: places that its authors have marked for tracers (USDT), with SystemTap's `sys/sdt.h`.
//!
//! The file has a note for each mark. A program does not load the notes, so they are found only if their pages are in memory: see
//! [`super::symbols`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use introspect::glob_matches;
use introspect::operand::SizedOperand;

use super::elf::{Bytes, Elf};
use super::symbols::table;

/// The section with the notes, and the section whose address tells how far the file has been moved since the notes were written.
const NOTES: &str = ".note.stapsdt";
const BASE: &str = ".stapsdt.base";
/// The owner of the notes, with the zero behind it, and their type.
const OWNER: &[u8] = b"stapsdt\0";
const TYPE: u32 = 3;
/// The most marks of a file: more than a probe can be at.
const MAX_MARKS: usize = 10_000;
/// The most operands of a mark: `sys/sdt.h` has macros for up to 12.
pub const MAX_OPERANDS: usize = 12;
/// The most bytes of a provider or a name, and of the operands.
const MAX_NAME_BYTES: usize = 256;
const MAX_OPERAND_BYTES: usize = 4096;
/// The addresses in front of a note's text.
const ADDRESS_BYTES: usize = 24;

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMark {
    /// The offset in the file of the marked instruction.
    pub offset: u64,
    /// The part of the program.
    pub provider: String,
    /// The name.
    pub name: String,
    /// The values that the program has for the mark; `None` for each that is not understood.
    pub operands: Vec<Option<SizedOperand>>,
    /// The counter in the program's memory, which tracers raise (a semaphore): the program passes the mark only while the counter is not zero.
    /// One for each segment of code; none if the mark has no counter.
    pub counters: Vec<MarkCounter>,
}

/// The counter of a mark, for the instructions of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkCounter {
    /// The place, as if the whole file were loaded as the segment is: for an instruction at the offset `o` and the address `a`, the counter is at
    /// `a - o + offset`.
    pub offset: u64,
    /// The offsets in the file of the segment.
    pub code: Range<u64>,
}

/// The marks of a file with names of two patterns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMarks {
    /// In the order of the notes, one for each instruction and name.
    pub marks: Vec<FileMark>,
    /// The number of damaged notes, which may have such names, and of notes with such names and an address without code.
    pub unusable: usize,
}

impl FileMark {
    /// Forgets each operand that differs from that of another note about the instruction: which of them counts is not known.
    fn keep_common(&mut self, other: &[Option<SizedOperand>]) {
        let len = self.operands.len().max(other.len());
        self.operands.resize(len, None);
        for (number, operand) in self.operands.iter_mut().enumerate() {
            *operand = operand.filter(|own| other.get(number) == Some(&Some(*own)));
        }
    }
}

/// A note without its frame.
struct Note<'n> {
    address: u64,
    base: u64,
    semaphore: u64,
    provider: &'n str,
    name: &'n str,
    operands: &'n str,
}

/// A note that is not to be understood, or all further notes, since the end of this one is unknown.
struct Damaged;

/// The marks with names of the patterns; `None` if the notes are not in memory.
pub(super) fn read(elf: &Elf, file: &dyn Bytes, provider: &str, name: &str) -> Option<FileMarks> {
    let [notes, base] = elf.sections(file, [NOTES, BASE])?;
    let Some(notes) = notes else {
        return Some(FileMarks::default());
    };
    let bytes = table(file, &notes.bytes)?;
    let place_of = |note: &Note<'_>| {
        // A note without a base has addresses that nothing has moved.
        let moved = match (&base, note.base) {
            (None, _) | (_, 0) => 0,
            (Some(base), at) => base.address.wrapping_sub(at),
        };
        let address = note.address.wrapping_add(moved);
        let counter = (note.semaphore != 0).then(|| note.semaphore.wrapping_add(moved));
        let counters = counter.into_iter().flat_map(|counter| {
            elf.code().map(move |code| MarkCounter {
                offset: code.offset_of(counter),
                code: code.offsets,
            })
        });
        Some((elf.code_offset_of(address)?, counters.collect()))
    };
    let mut found = FileMarks::default();
    let mut numbers = BTreeMap::<_, usize>::new();
    for note in notes_in(&bytes) {
        let Ok(note) = note else {
            found.unusable += 1;
            continue;
        };
        if !glob_matches(provider, note.provider) || !glob_matches(name, note.name) {
            continue;
        }
        let Some((offset, counters)) = place_of(&note) else {
            found.unusable += 1;
            continue;
        };
        let operands = SizedOperand::list(note.operands, MAX_OPERANDS);
        match numbers.entry((offset, note.provider, note.name)) {
            // The linker may have merged functions with equal code.
            Entry::Occupied(number) => found.marks[*number.get()].keep_common(&operands),
            Entry::Vacant(number) => {
                number.insert(found.marks.len());
                found.marks.push(FileMark {
                    offset,
                    provider: note.provider.to_owned(),
                    name: note.name.to_owned(),
                    operands,
                    counters,
                });
            }
        }
        if found.marks.len() == MAX_MARKS {
            break;
        }
    }
    Some(found)
}

/// The notes of marks in `bytes`.
fn notes_in(bytes: &[u8]) -> impl Iterator<Item = Result<Note<'_>, Damaged>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            if rest.is_empty() {
                return None;
            }
            let Some(framed) = Framed::first(rest) else {
                rest = &[];
                return Some(Err(Damaged));
            };
            rest = framed.behind;
            if framed.owner == OWNER && framed.kind == TYPE {
                return Some(note(framed.description).ok_or(Damaged));
            }
        }
    })
}

/// A note of any owner.
struct Framed<'n> {
    owner: &'n [u8],
    kind: u32,
    description: &'n [u8],
    behind: &'n [u8],
}

impl<'n> Framed<'n> {
    /// The first note in `bytes`; `None` if it has no end.
    fn first(bytes: &'n [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let field = |number: usize| {
            let field = head.as_chunks::<4>().0[number];
            u32::from_le_bytes(field)
        };
        let owner_len = usize::try_from(field(0)).ok()?;
        let len = usize::try_from(field(1)).ok()?;
        // Zeros are no note: the page may have come without its contents.
        let owner = rest.get(..owner_len).filter(|owner| !owner.is_empty())?;
        let rest = rest.get(owner_len.checked_next_multiple_of(4)?..)?;
        let description = rest.get(..len)?;
        // The last note may lack the padding.
        let behind = rest.get(len.checked_next_multiple_of(4)?..);
        Some(Self {
            owner,
            kind: field(2),
            description,
            behind: behind.unwrap_or_default(),
        })
    }
}

fn note(description: &[u8]) -> Option<Note<'_>> {
    let (addresses, text) = description.split_first_chunk::<ADDRESS_BYTES>()?;
    let address = |number: usize| u64::from_le_bytes(addresses.as_chunks::<8>().0[number]);
    let mut words = text.split(|byte| *byte == 0);
    let mut word = |most: usize| {
        let word = words.next().filter(|word| word.len() <= most)?;
        std::str::from_utf8(word).ok()
    };
    let note = Note {
        address: address(0),
        base: address(1),
        semaphore: address(2),
        provider: word(MAX_NAME_BYTES)?,
        name: word(MAX_NAME_BYTES)?,
        operands: word(MAX_OPERAND_BYTES)?,
    };
    // A wrong length has other notes behind the text.
    words.all(<[u8]>::is_empty).then_some(note)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::programs::tests::At;

    fn length(bytes: &[u8]) -> u32 {
        u32::try_from(bytes.len()).expect("a short part")
    }

    fn framed(owner: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for number in [length(owner), length(description), kind] {
            note.extend(number.to_le_bytes());
        }
        for part in [owner, description] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    fn mark_with_base(address: u64, base: u64, text: &[u8]) -> Vec<u8> {
        let mut description = Vec::new();
        for address in [address, base, 0] {
            description.extend(address.to_le_bytes());
        }
        description.extend(text);
        framed(OWNER, TYPE, &description)
    }

    fn mark(address: u64, text: &str) -> Vec<u8> {
        mark_with_base(address, 0, text.as_bytes())
    }

    /// The marks, and the number of damaged notes.
    fn names(bytes: &[u8]) -> (Vec<(u64, String)>, usize) {
        let notes: Vec<_> = notes_in(bytes).collect();
        let damaged = notes.iter().filter(|note| note.is_err()).count();
        let name = |note: Note<'_>| {
            let text = format!("{}:{} {}", note.provider, note.name, note.operands);
            (note.address, text)
        };
        let found = notes.into_iter().flatten().map(name);
        (found.collect(), damaged)
    }

    /// A program with code at 0x1000, data at 0x3000 and `notes`; the base of the notes is at 0x2000.
    fn program(notes: &[u8]) -> At {
        let mut file = vec![0; 0x1000];
        let put = |file: &mut Vec<u8>, at: usize, number: u64, bytes: usize| {
            file[at..at + bytes].copy_from_slice(&number.to_le_bytes()[..bytes]);
        };
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        for (at, number, bytes) in [
            // The tables: where, the size of an entry, the number.
            (32, 64, 8),
            (40, 0x200, 8),
            (54, 56, 2),
            (56, 2, 2),
            (58, 64, 2),
            (60, 3, 2),
            (62, 2, 2),
            // The segments.
            (64, 1, 4),
            (64 + 4, 5, 4),
            (64 + 8, 0x400, 8),
            (64 + 16, 0x1000, 8),
            (64 + 32, 0x100, 8),
            (120, 1, 4),
            (120 + 4, 6, 4),
            (120 + 8, 0x500, 8),
            (120 + 16, 0x3000, 8),
            (120 + 32, 0x100, 8),
            // The sections: the notes, the base, the names.
            (0x200, 1, 4),
            (0x200 + 24, 0x1000, 8),
            (0x200 + 32, notes.len() as u64, 8),
            (0x240, 16, 4),
            (0x240 + 16, 0x2000, 8),
            (0x280 + 24, 0x300, 8),
            (0x280 + 32, 64, 8),
        ] {
            put(&mut file, at, number, bytes);
        }
        file[0x301..][..NOTES.len()].copy_from_slice(NOTES.as_bytes());
        file[0x310..][..BASE.len()].copy_from_slice(BASE.as_bytes());
        file.extend(notes);
        At(0, file)
    }

    fn found(notes: &[u8]) -> (Vec<(u64, String)>, usize) {
        let file = program(notes);
        let elf = Elf::read(&file).expect("a program");
        let found = read(&elf, &file, "*", "*").expect("notes");
        let marks = found.marks.into_iter();
        let marks = marks.map(|mark| (mark.offset, format!("{}:{}", mark.provider, mark.name)));
        (marks.collect(), found.unusable)
    }

    #[test]
    fn notes_of_others_are_left_out() {
        let bytes = [
            framed(b"GNU\0", 3, b"xyz"),
            mark(0x10, "a\0b\08@%rax\0"),
            framed(OWNER, 4, b"x"),
            mark(0x20, "python\0gc__start\0\0"),
        ]
        .concat();
        let own = [(0x10, "a:b 8@%rax"), (0x20, "python:gc__start ")];
        let own = own.map(|(address, text)| (address, text.to_owned()));
        assert_eq!(names(&bytes), (own.to_vec(), 0));
    }

    #[test]
    fn last_note_may_lack_its_padding() {
        let mut bytes = mark(0x10, "a\0b\0\0");
        let unpadded = 12 + OWNER.len() + ADDRESS_BYTES + 5;
        bytes.truncate(unpadded);
        assert_eq!(names(&bytes).0.len(), 1);
        bytes.pop();
        assert_eq!(names(&bytes), (vec![], 1));
    }

    #[test]
    fn marks_behind_a_damaged_note_are_found() {
        let long = format!("{}\0b\0\0", "a".repeat(MAX_NAME_BYTES + 1));
        for damaged in [
            mark_with_base(0x10, 0, b"a\0\xff\0\0"),
            mark(0x10, "a\0b"),
            mark(0x10, &long),
            framed(OWNER, TYPE, b"short"),
        ] {
            let bytes = [mark(1, "a\0b\0\0"), damaged, mark(2, "c\0d\0\0")].concat();
            let others = [(1, "a:b ".to_owned()), (2, "c:d ".to_owned())];
            assert_eq!(names(&bytes), (others.to_vec(), 1));
        }
    }

    #[test]
    fn notes_behind_a_note_without_end_count_as_one_damaged() {
        let mut endless = mark(2, "c\0d\0\0");
        endless[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let bytes = [mark(1, "a\0b\0\0"), endless, mark(3, "e\0f\0\0")].concat();
        assert_eq!(names(&bytes), (vec![(1, "a:b ".to_owned())], 1));
    }

    #[test]
    fn marks_move_with_their_base() {
        let text = b"a\0b\0\0";
        // The base was at 0x1800 when the note was written.
        let moved = mark_with_base(0x810, 0x1800, text);
        assert_eq!(found(&moved), (vec![(0x410, "a:b".to_owned())], 0));
        let unmoved = mark_with_base(0x1020, 0, text);
        assert_eq!(found(&unmoved), (vec![(0x420, "a:b".to_owned())], 0));
    }

    #[test]
    fn mark_outside_of_code_is_unusable() {
        for address in [0, 0x3010, 0x1100, u64::MAX] {
            let note = mark(address, "a\0b\0\0");
            assert_eq!(found(&note), (vec![], 1), "{address:#x}");
        }
    }

    #[test]
    fn notes_of_one_mark_are_one() {
        let notes = [
            mark(0x1010, "a\0b\08@%rax\0"),
            mark(0x1010, "a\0b\08@%rax\0"),
            mark(0x1010, "a\0c\0\0"),
            mark(0x1014, "a\0b\0\0"),
        ]
        .concat();
        let marks = [(0x410, "a:b"), (0x410, "a:c"), (0x414, "a:b")];
        let marks = marks.map(|(offset, name)| (offset, name.to_owned()));
        assert_eq!(found(&notes), (marks.to_vec(), 0));
    }

    #[test]
    fn operands_that_differ_between_notes_of_one_mark_are_unknown() {
        let notes = ["4@$1 8@%rax", "4@$2 8@%rax 8@%rbx", "4@$1 8@%rax 8@%rbx"];
        let notes = notes.map(|operands| mark(0x1010, &format!("a\0b\0{operands}\0")));
        let file = program(&notes.concat());
        let elf = Elf::read(&file).expect("a program");
        let marks = read(&elf, &file, "a", "b").expect("notes").marks;
        let [rax] = SizedOperand::list("8@%rax", 1)[..] else {
            panic!("one operand");
        };
        let operands = marks.iter().map(|mark| &mark.operands[..]);
        assert_eq!(operands.collect::<Vec<_>>(), [[None, rax, None]]);
    }

    #[test]
    fn zeros_in_place_of_notes_are_one_damaged() {
        let bytes = [mark(1, "a\0b\0\0"), vec![0; 1200], mark(2, "c\0d\0\0")].concat();
        assert_eq!(names(&bytes), (vec![(1, "a:b ".to_owned())], 1));
        assert_eq!(found(&[0; 1200]), (vec![], 1));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(notes_in(&bytes).count() <= 200 / 12 + 1);
        }

        #[test]
        fn note_with_a_damaged_byte_is_there_or_counts(at in 0..104_usize, byte in any::<u8>()) {
            // Another length of the first owner may reach to the end, as one note of another.
            prop_assume!(at >= 4);
            let mut bytes = [mark(1, "a\0b\0c\0"), mark(2, "d\0e\0f\0")].concat();
            prop_assert_eq!(bytes.len(), 104);
            bytes[at] = byte;
            let (found, damaged) = names(&bytes);
            // With another owner or type, it is the note of another.
            let others = usize::from([0..4, 8..20].iter().any(|head| head.contains(&(at % 52))));
            prop_assert!(found.len() == 2 || damaged + others >= 1, "{found:?}");
        }
    }
}
