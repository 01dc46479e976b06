//! The command line of a program, from the program's own memory.

use address::{Gva, PAGE_BYTES};
use introspect::Btf;
use introspect::btf::Slot;

use crate::programs::{DirectMap, SpaceLayout};
use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// The most bytes of a command line that are read.
const MAX_BYTES: u64 = 4096;

/// The members of `mm_struct`.
#[derive(Debug)]
pub(super) struct ProgramLayout {
    space: SpaceLayout,
    start: Slot,
    end: Slot,
}

impl ProgramLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let memory = StructType::named(btf, "mm_struct")?;
        Ok(Self {
            space: SpaceLayout::new(btf)?,
            start: memory.slot("arg_start")?,
            end: memory.slot("arg_end")?,
        })
    }

    /// The words of the command line of the program with the `mm_struct` at `memory`; empty if its page is not in memory.
    pub(super) fn words(
        &self,
        reads: &Reads<'_>,
        map: DirectMap,
        memory: Gva,
    ) -> Result<Vec<String>, ReadsError> {
        let space = self.space.space(reads, map, memory)?;
        let start = reads.number(memory, self.start)?;
        let end = reads.number(memory, self.end)?;
        let len = end.saturating_sub(start).min(MAX_BYTES);
        let mut text = Vec::new();
        while (text.len() as u64) < len {
            let at = Gva(start).wrapping_add(text.len() as u64);
            let here = (PAGE_BYTES - at.page_offset()).min(len - text.len() as u64);
            let mut page = vec![0; usize::try_from(here).unwrap_or(0)];
            if space.read(at, &mut page).is_none() {
                break;
            }
            text.extend(page);
        }
        Ok(words(&text))
    }
}

/// The words before each zero, without the empty words at the end.
fn words(text: &[u8]) -> Vec<String> {
    let used = text
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    if used == 0 {
        return Vec::new();
    }
    let words = text[..used].split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_at_zeros() {
        assert_eq!(words(b"sh\0-c\0a b\0\0\0"), ["sh", "-c", "a b"]);
        assert_eq!(words(b"a\0\0b\0"), ["a", "", "b"]);
        assert_eq!(words(b"cut"), ["cut"]);
        assert!(words(b"\0\0").is_empty() && words(b"").is_empty());
    }
}
