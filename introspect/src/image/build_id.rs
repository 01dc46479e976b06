//! The build-id of an ELF file: the linker's digest of the contents.

use std::fmt;

use object::{LittleEndian, Object, read::elf::ElfFile64};

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
}
