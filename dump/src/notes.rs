//! The notes of a core file: written, and read again.

use vmm::VcpuState;

use crate::core_error::OpenDumpError;
use crate::registers;

const NT_PRSTATUS: u32 = 1;
const CORE: &str = "CORE";
const VMCOREINFO: &str = "VMCOREINFO";
/// Lengths of the name and of the contents, and the type.
const NOTE_HEADER_BYTES: usize = 12;
const ALIGN_BYTES: usize = 4;

/// The registers of each vCPU, in the order of the vCPUs, because readers count; crash counts only the vCPUs that are online in the guest. Then the kernel's VMCOREINFO.
pub(crate) fn all(vcpus: &[VcpuState], vmcoreinfo: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (thread, vcpu) in (1..).zip(vcpus) {
        add(
            &mut out,
            CORE,
            NT_PRSTATUS,
            &registers::prstatus(thread, vcpu),
        );
    }
    if !vmcoreinfo.is_empty() {
        add(&mut out, VMCOREINFO, 0, vmcoreinfo);
    }
    out
}

fn add(out: &mut Vec<u8>, name: &str, kind: u32, contents: &[u8]) {
    // Names and contents have at most a few kilobytes.
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    out.extend(length(name.len() + 1));
    out.extend(length(contents.len()));
    out.extend(kind.to_le_bytes());
    out.extend(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(ALIGN_BYTES), 0);
    out.extend(contents);
    out.resize(out.len().next_multiple_of(ALIGN_BYTES), 0);
}

/// The notes that hyprobe reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note<'b> {
    /// The contents of NT_PRSTATUS.
    Registers(&'b [u8]),
    /// The kernel's text.
    VmCoreInfo(&'b [u8]),
    /// Another note.
    Other,
}

/// The notes in `bytes`, in their order. A damaged note is the last.
pub(crate) fn parse(bytes: &[u8]) -> impl Iterator<Item = Result<Note<'_>, OpenDumpError>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let note = note_at(bytes, at);
        match note {
            Some((note, next)) => {
                at = next;
                Some(Ok(note))
            }
            None => {
                let damaged = at;
                at = bytes.len();
                Some(Err(OpenDumpError::Notes { at: damaged }))
            }
        }
    })
}

/// The note at `at`, and the place of the next one.
fn note_at(bytes: &[u8], at: usize) -> Option<(Note<'_>, usize)> {
    let header = bytes.get(at..at.checked_add(NOTE_HEADER_BYTES)?)?;
    let number = |at: usize| {
        let number = header.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*number))
    };
    let (name_len, len) = (number(0)? as usize, number(4)? as usize);
    let name_at = at + NOTE_HEADER_BYTES;
    let name = bytes.get(name_at..name_at.checked_add(name_len)?)?;
    let contents_at = padded(name_at + name_len)?;
    let end = contents_at.checked_add(len)?;
    let contents = bytes.get(contents_at..end)?;
    let is = |wanted: &str| name.strip_suffix(&[0]).unwrap_or(name) == wanted.as_bytes();
    let note = match number(8)? {
        NT_PRSTATUS if is(CORE) => Note::Registers(contents),
        _ if is(VMCOREINFO) => Note::VmCoreInfo(contents),
        _ => Note::Other,
    };
    Some((note, padded(end)?))
}

fn padded(at: usize) -> Option<usize> {
    at.checked_next_multiple_of(ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_notes_are_read_again() {
        let vcpus = vec![VcpuState::default(); 2];
        let mut bytes = all(&vcpus, b"OSRELEASE=1\n");
        add(&mut bytes, "QEMU", NT_PRSTATUS, b"x");
        let notes: Vec<_> = parse(&bytes).map(|note| note.expect("whole")).collect();
        let [
            Note::Registers(first),
            Note::Registers(second),
            Note::VmCoreInfo(text),
            Note::Other,
        ] = notes[..]
        else {
            panic!("{notes:?}");
        };
        assert_eq!(first, registers::prstatus(1, &vcpus[0]));
        assert_eq!(second, registers::prstatus(2, &vcpus[1]));
        assert_eq!(text, b"OSRELEASE=1\n");
    }

    #[test]
    fn damaged_note_is_an_error_at_its_byte_and_the_last() {
        let mut bytes = all(&[], b"OSRELEASE=1\n");
        let whole = bytes.len();
        add(&mut bytes, "CORE", NT_PRSTATUS, b"four");
        for cut in 1..bytes.len() - whole {
            let notes: Vec<_> = parse(&bytes[..bytes.len() - cut]).collect();
            let [Ok(_), Err(OpenDumpError::Notes { at })] = &notes[..] else {
                panic!("{cut}: {notes:?}");
            };
            assert_eq!(*at, whole);
        }
        bytes[whole..whole + 4].fill(0xff);
        assert!(parse(&bytes).last().is_some_and(|last| last.is_err()));
    }
}
