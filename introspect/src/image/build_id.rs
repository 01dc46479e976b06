//! The build-id of an ELF file: the linker's digest of the contents.

use std::fmt;

use object::{
    LittleEndian, Object, elf,
    read::elf::{ElfFile64, NoteIterator},
};

/// A linker writes 20 bytes, or as many as its user asks for.
const MAX_BYTES: usize = 64;

/// The digest in the GNU note of a kernel's file, which a file with the kernel's debug information repeats.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// The build-id of `bytes`; `None` for an empty or overlong note.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let fits = (1..=MAX_BYTES).contains(&bytes.len());
        fits.then(|| Self(bytes.to_vec()))
    }

    /// The build-id in the notes of the ELF file `elf`, if any.
    #[must_use]
    pub fn of_elf(elf: &[u8]) -> Option<Self> {
        let file = ElfFile64::<LittleEndian>::parse(elf).ok()?;
        Self::new(file.build_id().ok()??)
    }

    /// The build-id among `notes`, if any: the contents of a section with notes, which a running kernel retains for itself and for each module.
    #[must_use]
    pub fn of_notes(notes: &[u8]) -> Option<Self> {
        let mut notes =
            NoteIterator::<elf::FileHeader64<LittleEndian>>::new(LittleEndian, 4, notes).ok()?;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(LittleEndian) == elf::NT_GNU_BUILD_ID
            {
                return Self::new(note.desc());
            }
        }
        None
    }
}

/// Prints hexadecimal digits, as in the names of files under `/usr/lib/debug/.build-id`.
impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_id_is_printed_in_hexadecimal_and_has_a_limit() {
        let id = BuildId::new(&[0x0a, 0xff]).expect("two bytes");
        assert_eq!(id.to_string(), "0aff");
        assert_eq!(BuildId::new(&[]), None);
        assert_eq!(BuildId::new(&[0; MAX_BYTES + 1]), None);
        assert_eq!(BuildId::of_elf(b"no ELF file"), None);
    }

    #[test]
    fn build_id_is_found_among_other_notes() {
        let note = |name: &[u8; 4], kind: u32, contents: [u8; 4]| {
            let mut note = Vec::new();
            for number in [4, 4, kind] {
                note.extend(number.to_le_bytes());
            }
            note.extend(name);
            note.extend(contents);
            note
        };
        let others = [note(b"Xen\0", 3, [9; 4]), note(b"GNU\0", 1, [9; 4])].concat();
        assert_eq!(BuildId::of_notes(&others), None);
        let with = [others, note(b"GNU\0", 3, [0xab, 1, 2, 3])].concat();
        let found = BuildId::of_notes(&with).expect("a build-id");
        assert_eq!(found.to_string(), "ab010203");
        assert_eq!(BuildId::of_notes(&with[..with.len() - 1]), None);
    }
}
