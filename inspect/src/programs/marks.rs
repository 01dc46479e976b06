//! The marks of a program's file: places that its authors have marked for tracers (USDT), with SystemTap's `sys/sdt.h`.
//!
//! The file has a note for each mark. A program does not load the notes, so they are found only if their pages are in memory: see
//! [`super::symbols`].

use introspect::glob_matches;

use super::elf::{Bytes, Elf};
use super::mark_operand::{self, MarkOperand};

/// The section with the notes, and the section whose address tells how far the file has been moved since the notes were written.
const NOTES: &str = ".note.stapsdt";
const BASE: &str = ".stapsdt.base";
/// The owner of the notes, with the zero behind it, and their type.
const OWNER: &[u8] = b"stapsdt\0";
const TYPE: u32 = 3;
/// The most bytes of notes. Some hundred bytes are usual for each.
const MAX_BYTES: u64 = 4 << 20;
/// The most marks of a file.
const MAX_MARKS: usize = 10_000;
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
    pub operands: Vec<Option<MarkOperand>>,
    /// Whether the program passes the mark only while a counter in its memory, which tracers raise, is not zero.
    pub has_semaphore: bool,
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

/// The marks with names of the patterns, in the order of the notes; `None` if the file has no notes in memory.
pub(super) fn read(
    elf: &Elf,
    file: &dyn Bytes,
    provider: &str,
    name: &str,
) -> Option<Vec<FileMark>> {
    let notes = elf.section(file, NOTES)?;
    let len = notes.bytes.end - notes.bytes.start;
    let len = usize::try_from(len).ok().filter(|_| len <= MAX_BYTES)?;
    let bytes = file.bytes(notes.bytes.start, len)?;
    let base = elf.section(file, BASE).map(|base| base.address);
    let is_wanted =
        |note: &Note<'_>| glob_matches(provider, note.provider) && glob_matches(name, note.name);
    let mark = |note: Note<'_>| {
        let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
        Some(FileMark {
            offset: elf.offset_of(note.address.wrapping_add(moved))?,
            provider: note.provider.to_owned(),
            name: note.name.to_owned(),
            operands: mark_operand::parse_all(note.operands),
            has_semaphore: note.semaphore != 0,
        })
    };
    let found = notes_in(&bytes).filter(is_wanted).filter_map(mark);
    Some(found.take(MAX_MARKS).collect())
}

/// The notes of marks in `bytes`, up to the first that is damaged.
fn notes_in(bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            let (head, behind) = rest.split_first_chunk::<12>()?;
            let field = |number: usize| {
                let field = head.as_chunks::<4>().0[number];
                u32::from_le_bytes(field)
            };
            let [owner_len, len] = [field(0), field(1)].map(|len| usize::try_from(len).ok());
            let owner = behind.get(..owner_len?)?;
            let behind = behind.get(owner_len?.checked_next_multiple_of(4)?..)?;
            let description = behind.get(..len?)?;
            // The last note may lack the padding.
            rest = behind
                .get(len?.checked_next_multiple_of(4)?..)
                .unwrap_or_default();
            if owner == OWNER && field(2) == TYPE {
                return note(description);
            }
        }
    })
}

fn note(description: &[u8]) -> Option<Note<'_>> {
    let (addresses, text) = description.split_first_chunk::<ADDRESS_BYTES>()?;
    let address = |number: usize| u64::from_le_bytes(addresses.as_chunks::<8>().0[number]);
    let mut words = text.split(|byte| *byte == 0);
    let mut word = || std::str::from_utf8(words.next()?).ok();
    Some(Note {
        address: address(0),
        base: address(1),
        semaphore: address(2),
        provider: word()?,
        name: word()?,
        operands: word()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    fn mark(address: u64, text: &str) -> Vec<u8> {
        let mut description = Vec::new();
        for address in [address, 0x2000, 0] {
            description.extend(address.to_le_bytes());
        }
        description.extend(text.as_bytes());
        framed(OWNER, TYPE, &description)
    }

    fn names(bytes: &[u8]) -> Vec<(u64, String)> {
        let found = notes_in(bytes);
        found
            .map(|note| {
                (
                    note.address,
                    format!("{}:{} {}", note.provider, note.name, note.operands),
                )
            })
            .collect()
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
        assert_eq!(
            names(&bytes),
            [
                (0x10, "a:b 8@%rax".to_owned()),
                (0x20, "python:gc__start ".to_owned())
            ]
        );
    }

    #[test]
    fn last_note_may_lack_its_padding() {
        let mut bytes = mark(0x10, "a\0b\0\0");
        let unpadded = 12 + OWNER.len() + ADDRESS_BYTES + 5;
        bytes.truncate(unpadded);
        assert_eq!(names(&bytes).len(), 1);
        bytes.pop();
        assert_eq!(names(&bytes).len(), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(notes_in(&bytes).count() <= 200);
        }

        #[test]
        fn damaged_notes_do_not_panic(at in 0..48_usize, byte in any::<u8>()) {
            let mut bytes = [mark(1, "a\0b\0c\0"), mark(2, "d\0e\0f\0")].concat();
            bytes[at] = byte;
            prop_assert!(notes_in(&bytes).count() <= 2);
        }
    }
}
