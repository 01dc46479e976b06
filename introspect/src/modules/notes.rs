//! A module's build-id: the linker's digest, in the notes that a guest shows in `/sys/module/NAME/notes`.
//!
//! The kernel keeps an array with the address and the size of each section with notes. Up to 6.13, the array has a count in front; since,
//! the array ends where its list for sysfs ends. Both end where an entry does not lie in the module.

use address::Gva;

use super::Module;
use crate::BuildId;
use crate::btf::{Btf, Slot, StructId};

/// A module has two or three sections with notes.
const MAX_SECTIONS: u64 = 16;
/// The largest section with notes lists the features that the code needs.
const MAX_SECTION_BYTES: u64 = 4096;
/// `struct bin_attribute` takes less than 100 bytes.
const MAX_ENTRY_BYTES: u64 = 1024;

/// The offsets in `struct module_notes_attrs`, and in its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotesLayout {
    /// `notes_attrs`, in `struct module`.
    notes: Slot,
    /// The offset of the first element.
    first: u64,
    /// The size of an element, a `struct bin_attribute`.
    stride: usize,
    address: Slot,
    size: Slot,
}

impl NotesLayout {
    /// `None` if the kernel is built without sysfs.
    pub(super) fn from_btf(btf: &Btf, module: StructId) -> Option<Self> {
        let notes = btf.struct_named("module_notes_attrs")?;
        let element = btf.struct_named("bin_attribute")?;
        let stride = btf
            .size_of(element)
            .filter(|bytes| (1..=MAX_ENTRY_BYTES).contains(bytes))?;
        Some(Self {
            notes: Slot::find(btf, module, "notes_attrs")?,
            first: btf.member(notes, "attrs")?.offset_bytes,
            stride: usize::try_from(stride).ok()?,
            address: Slot::find(btf, element, "private")?,
            size: Slot::find(btf, element, "size")?,
        })
    }

    /// The build-id of `module`, from the bytes of the `struct module`; `None` if the module has none, or if it cannot be read. `read` reads as many
    /// bytes at an address.
    pub(super) fn build_id(
        &self,
        read: impl Fn(Gva, usize) -> Option<Vec<u8>>,
        bytes: &[u8],
        module: &Module,
    ) -> Option<BuildId> {
        let notes = self.notes.read(bytes).filter(|&notes| notes != 0)?;
        let first = Gva(notes).wrapping_add(self.first);
        for number in 0..MAX_SECTIONS {
            let at = first.wrapping_add(number * self.stride as u64);
            let entry = read(at, self.stride)?;
            let (address, size) = (Gva(self.address.read(&entry)?), self.size.read(&entry)?);
            module.region_at(address)?;
            let len = usize::try_from(size).ok();
            let Some(len) = len.filter(|_| size <= MAX_SECTION_BYTES) else {
                continue;
            };
            let section = read(address, len)?;
            if let Some(id) = BuildId::of_notes(&section) {
                return Some(id);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::Modules;
    use crate::modules::synthetic::{FORMS, Guest, LIVE};

    /// A note with this name, a type and contents.
    fn note(name: &[u8], kind: u32, contents: &[u8]) -> Vec<u8> {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
        let mut note = [len(name), len(contents), kind.to_le_bytes()].concat();
        for part in [name, contents] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    fn read(guest: &Guest, module: Gva) -> Option<String> {
        let modules = Modules::new(&guest.btf()).expect("types of modules");
        let read = modules.read_one(&guest.memory, &Guest::paging(), module);
        read.expect("a module").build_id().map(ToString::to_string)
    }

    #[test]
    fn build_id_is_in_one_of_the_sections_with_notes() {
        for form in FORMS {
            let mut guest = Guest::new(form);
            let module = guest.module(LIVE);
            assert_eq!(read(&guest, module), None, "{form:?}");
            let linux = note(b"Linux\0", 0x100, b"func");
            let other = note(b"GNU\0", 5, &[1, 2]);
            let own = note(b"GNU\0", 3, &[0xab, 0xcd, 0x01]);
            guest.notes_of(module, &[&linux, &[other, own].concat()]);
            assert_eq!(read(&guest, module).as_deref(), Some("abcd01"), "{form:?}");
        }
    }

    #[test]
    fn false_notes_have_no_build_id() {
        let own = note(b"GNU\0", 3, &[0xab; 20]);
        let mut cut = own.clone();
        cut.truncate(own.len() - 5);
        let huge = note(b"GNU\0", 3, &[0xab; 65]);
        for section in [&cut[..], &huge, &[0xff; 64], &[]] {
            assert_eq!(BuildId::of_notes(section), None, "{section:x?}");
        }
        let mut guest = Guest::new(FORMS[0]);
        let module = guest.module(LIVE);
        // The array leads out of the module.
        guest.notes_outside(module, &own);
        assert_eq!(read(&guest, module), None);
    }
}
