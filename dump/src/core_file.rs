//! The layout of a core file: header, program headers, notes, and the place of each range of RAM.
//!
//! ```text
//!  0        64                                                    multiple of 4096
//!  header │ PT_NOTE │ PT_LOAD text │ PT_LOAD RAM … │ notes │ 0 … │ first range of RAM │ second │ …
//! ```
//!
//! As in the kernel's `/proc/vmcore`, a segment for the kernel's text has the addresses of the kernel's image, and the segments of RAM have
//! those of the direct map. The text is a part of RAM: both segments share the bytes of the file.

use std::ops::Range;

use address::{Gpa, Gva, PAGE_BYTES, PAGE_LEN};
use vmm::VcpuState;

use crate::kernel_part::KernelPart;
use crate::notes;

pub(crate) const HEADER_BYTES: u64 = 64;
pub(crate) const PROGRAM_HEADER_BYTES: u64 = 56;

pub(crate) const ELF_CLASS_64_LITTLE_ENDIAN_V1: [u8; 16] =
    *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0";
pub(crate) const ET_CORE: u16 = 4;
pub(crate) const EM_X86_64: u16 = 62;
const EV_CURRENT: u32 = 1;
pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_NOTE: u32 = 4;
const READ_WRITE_EXECUTE: u32 = 7;

/// The parts of a paused guest that a core file describes.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    /// The ranges of RAM in ascending order; whole pages.
    pub ram: Vec<Range<Gpa>>,
    /// The registers of each vCPU.
    pub vcpus: Vec<VcpuState>,
    /// The kernel in the guest's memory.
    pub kernel: KernelPart,
}

/// A range of RAM, and its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) gpa: Gpa,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
}

/// The layout of a core file.
#[derive(Clone, Debug)]
pub struct Core {
    /// The bytes in front of the first range of RAM.
    head: Vec<u8>,
    pub(crate) segments: Vec<Segment>,
}

/// A program header.
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    virt: u64,
    phys: u64,
    bytes: u64,
    align: u64,
}

impl ProgramHeader {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.kind.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        for word in [
            self.offset,
            self.virt,
            self.phys,
            self.bytes,
            self.bytes,
            self.align,
        ] {
            out.extend(word.to_le_bytes());
        }
    }
}

impl Core {
    /// The core file of `guest`.
    #[must_use]
    pub fn new(guest: &Guest) -> Self {
        let notes = notes::all(&guest.vcpus, &guest.kernel.vmcoreinfo);
        let has_text = guest.kernel.text.is_some();
        let headers = 1 + usize::from(has_text) + guest.ram.len();
        let notes_at = HEADER_BYTES + headers as u64 * PROGRAM_HEADER_BYTES;
        let memory_at = (notes_at + notes.len() as u64).next_multiple_of(PAGE_BYTES);
        let segments = place(&guest.ram, memory_at);
        let mut head = header(headers);
        ProgramHeader {
            kind: PT_NOTE,
            flags: 0,
            offset: notes_at,
            virt: 0,
            phys: 0,
            bytes: notes.len() as u64,
            align: 4,
        }
        .write(&mut head);
        let load = |offset, virt, gpa: Gpa, bytes| ProgramHeader {
            kind: PT_LOAD,
            flags: READ_WRITE_EXECUTE,
            offset,
            virt,
            phys: gpa.0,
            bytes,
            align: PAGE_BYTES,
        };
        if let Some(text) = guest.kernel.text {
            // A guest's symbols and page tables may place the text outside RAM. An empty segment keeps the number of headers.
            let (offset, bytes) = in_file(&segments, text.gpa, text.bytes).unwrap_or((0, 0));
            load(offset, text.at.0, text.gpa, bytes).write(&mut head);
        }
        let direct_map = guest.kernel.direct_map.unwrap_or(Gva(0));
        for segment in &segments {
            let virt = direct_map.wrapping_add(segment.gpa.0);
            load(segment.offset, virt.0, segment.gpa, segment.bytes).write(&mut head);
        }
        head.extend(notes);
        head.resize(head.len().next_multiple_of(PAGE_LEN), 0);
        Self { head, segments }
    }

    /// The bytes in front of the first range of RAM.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The size of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let last = self.segments.last();
        last.map_or(self.head.len() as u64, |last| last.offset + last.bytes)
    }
}

/// Places the ranges of RAM one behind the other.
fn place(ram: &[Range<Gpa>], first: u64) -> Vec<Segment> {
    let mut offset = first;
    let mut placed = Vec::with_capacity(ram.len());
    for range in ram {
        let bytes = range.end.0.saturating_sub(range.start.0);
        placed.push(Segment {
            gpa: range.start,
            bytes,
            offset,
        });
        offset += bytes;
    }
    placed
}

/// The place of `gpa` in the file, and the number of bytes from there on in one segment, at most `bytes`.
fn in_file(segments: &[Segment], gpa: Gpa, bytes: u64) -> Option<(u64, u64)> {
    segments.iter().find_map(|segment| {
        let within = gpa.offset_from(segment.gpa)?;
        let left = segment.bytes.checked_sub(within).filter(|left| *left > 0)?;
        Some((segment.offset + within, left.min(bytes)))
    })
}

fn header(program_headers: usize) -> Vec<u8> {
    let mut out = ELF_CLASS_64_LITTLE_ENDIAN_V1.to_vec();
    out.extend(ET_CORE.to_le_bytes());
    out.extend(EM_X86_64.to_le_bytes());
    out.extend(EV_CURRENT.to_le_bytes());
    // No entry point, the program headers behind this header, no section headers, no flags.
    for word in [0, HEADER_BYTES, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0_u32.to_le_bytes());
    // A guest has a handful of ranges of RAM.
    let count = u16::try_from(program_headers).unwrap_or(u16::MAX);
    for half in [64, 56, count, 64, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use object::LittleEndian;
    use object::elf::{FileHeader64, PT_LOAD, PT_NOTE};
    use object::read::elf::{FileHeader as _, ProgramHeader as _};

    use super::*;
    use crate::kernel_part::TextMapping;

    const TEXT: Gva = Gva(0xffff_ffff_9a00_0000);
    const DIRECT: Gva = Gva(0xffff_9bc0_0000_0000);

    fn guest() -> Guest {
        Guest {
            ram: vec![Gpa(0)..Gpa(0x9_f000), Gpa(0x10_0000)..Gpa(0x80_0000)],
            vcpus: vec![VcpuState::default(); 2],
            kernel: KernelPart {
                text: Some(TextMapping {
                    at: TEXT,
                    gpa: Gpa(0x20_0000),
                    bytes: 0x30_0000,
                }),
                direct_map: Some(DIRECT),
                vmcoreinfo: b"OSRELEASE=1\n".to_vec(),
                remarks: Vec::new(),
            },
        }
    }

    /// The addresses, the place and the length of each loaded segment.
    fn loads(head: &[u8]) -> Vec<(u64, u64, u64, u64)> {
        let file = FileHeader64::<LittleEndian>::parse(head).expect("an ELF file");
        let endian = file.endian().expect("little-endian");
        assert_eq!(file.e_type(endian), object::elf::ET_CORE);
        let headers = file.program_headers(endian, head).expect("in the head");
        let loads = headers.iter().filter(|one| one.p_type(endian) == PT_LOAD);
        loads
            .map(|one| {
                assert_eq!(one.p_filesz(endian), one.p_memsz(endian));
                let at = (one.p_vaddr(endian), one.p_paddr(endian));
                (at.0, at.1, one.p_offset(endian), one.p_filesz(endian))
            })
            .collect()
    }

    #[test]
    fn text_and_direct_map_share_the_bytes_of_ram() {
        let core = Core::new(&guest());
        let low = 0x1000;
        let high = low + 0x9_f000;
        assert_eq!(
            loads(core.head()),
            [
                (TEXT.0, 0x20_0000, high + 0x10_0000, 0x30_0000),
                (DIRECT.0, 0, low, 0x9_f000),
                (DIRECT.0 + 0x10_0000, 0x10_0000, high, 0x70_0000),
            ]
        );
        assert_eq!(core.bytes(), high + 0x70_0000);
    }

    #[test]
    fn text_beyond_ram_is_cut_or_empty() {
        let mut guest = guest();
        let mut text = guest.kernel.text.expect("text");
        text.bytes = u64::MAX;
        guest.kernel.text = Some(text);
        assert_eq!(loads(Core::new(&guest).head())[0].3, 0x60_0000);
        text.gpa = Gpa(0x80_0000);
        guest.kernel.text = Some(text);
        assert_eq!(loads(Core::new(&guest).head())[0].3, 0);
    }

    #[test]
    fn notes_are_those_of_each_vcpu_and_vmcoreinfo() {
        let core = Core::new(&guest());
        let head = core.head();
        let file = FileHeader64::<LittleEndian>::parse(head).expect("an ELF file");
        let endian: LittleEndian = file.endian().expect("little-endian");
        let headers = file.program_headers(endian, head).expect("in the head");
        let mut found = Vec::new();
        for header in headers.iter().filter(|one| one.p_type(endian) == PT_NOTE) {
            let notes = header.notes(endian, head).expect("in the head");
            let mut notes = notes.expect("notes");
            while let Some(note) = notes.next().expect("a note") {
                let name = String::from_utf8_lossy(note.name()).into_owned();
                found.push((name, note.n_type(endian).0, note.desc().len()));
            }
        }
        let expected = [("CORE", 1, 336), ("CORE", 1, 336), ("VMCOREINFO", 0, 12)];
        let expected = expected.map(|(name, kind, len)| (name.to_owned(), kind, len));
        assert_eq!(found, expected);
    }
}
