//! Compares the records of a snippet from two boots.

use super::record::{CR2, FIELDS, FPU, Field, HOW, How, RFLAGS, Record, VECTOR};
use super::snippet::Snippet;

const PAGE_FAULT: u64 = 14;

/// A wrong result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The kind, equal for similar errors.
    pub(super) kind: String,
    pub(super) text: String,
}

/// Every word that differs, except in the fields named in `without`.
pub(super) fn differences(
    without: &[String],
    snippet: &Snippet,
    unprobed: Record<'_>,
    probed: Record<'_>,
) -> Vec<Mismatch> {
    if unprobed.how() == How::NotRun || probed.how() == How::NotRun {
        let text = "it was not run".to_owned();
        return vec![Mismatch {
            kind: text.clone(),
            text,
        }];
    }
    let mut found = Vec::new();
    let asked = |field: &&Field| !without.iter().any(|name| name == field.name);
    for field in FIELDS.iter().filter(asked) {
        for index in 0..field.words {
            let (expected, got) = (unprobed.word(field, index), probed.word(field, index));
            let different = (expected ^ got) & compared(snippet, unprobed, field, index);
            if different != 0 {
                let name = field.name;
                found.push(Mismatch {
                    kind: match field.offset == RFLAGS.offset {
                        true => format!("{name}^{different:#x}"),
                        false => name.to_owned(),
                    },
                    text: format!("{name} {index}: {expected:#x} unprobed, {got:#x} probed"),
                });
            }
        }
    }
    found
}

/// The bits of a word to compare: they are equal in any two runs on the same processor.
fn compared(snippet: &Snippet, unprobed: Record<'_>, field: &Field, index: usize) -> u64 {
    match (field.offset, index) {
        // CR2 means nothing after another exception than a page fault, or none.
        (offset, _) if offset == CR2.offset => {
            let faulted = unprobed.word(&HOW, 0) == 3 && unprobed.word(&VECTOR, 0) == PAGE_FAULT;
            if faulted { u64::MAX } else { 0 }
        }
        // The manuals leave these flags open, and the emulator does not ask the processor.
        (offset, _) if offset == RFLAGS.offset => !snippet.undefined_flags(),
        // The last two bytes are the last opcode. The next two words are the addresses of the last x87 instruction and of the
        // instruction's operand. AMD's fxsave stores none of them, so that every task switch of the host loses them.
        (offset, 0) if offset == FPU.offset => u64::MAX >> 16,
        (offset, 1 | 2) if offset == FPU.offset => 0,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::super::program::{Chosen, Program};
    use super::super::record::{RECORD_BYTES, TRAP_RIP};
    use super::*;

    fn record(words: &[(&Field, usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_BYTES];
        for (field, index, word) in words {
            bytes[field.offset + index * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn fields_common_to_two_runs_are_compared() {
        let program = Program::generate(&Layout::example(), 1, 1, Chosen::default());
        let snippet = &program.snippets[0];
        let compare = |one: &[(&Field, usize, u64)], other: &[(&Field, usize, u64)]| {
            differences(&[], snippet, Record(&record(one)), Record(&record(other)))
        };
        let trap = |vector, cr2| [(&HOW, 0, 3), (&VECTOR, 0, vector), (&CR2, 0, cr2)];
        assert!(compare(&trap(14, 1), &trap(14, 1)).is_empty());
        assert_eq!(compare(&trap(14, 1), &trap(14, 2)).len(), 1);
        assert!(compare(&trap(13, 1), &trap(13, 2)).is_empty());
        assert_eq!(
            compare(&[(&HOW, 0, 3)], &[(&HOW, 0, 3), (&TRAP_RIP, 0, 9)]).len(),
            1
        );
        assert_eq!(
            compare(&[(&HOW, 0, 1)], &[(&HOW, 0, 1), (&FPU, 1, 9)]).len(),
            0
        );
        assert_eq!(compare(&[], &[(&HOW, 0, 1)])[0].text, "it was not run");
    }
}
