//! The headers and notes of a core file, as read from the file.
//!
//! The file may be damaged or false: every number is compared with the size of the file and with a limit before it is used.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use address::{Gpa, Gva};

use crate::core_error::{DumpReadError, OpenDumpError};
use crate::core_file::{
    ELF_CLASS_64_LITTLE_ENDIAN_V1, EM_X86_64, ET_CORE, HEADER_BYTES, PROGRAM_HEADER_BYTES, PT_LOAD,
    PT_NOTE,
};

/// A dump of a large machine has some hundred ranges of RAM.
const MAX_SEGMENTS: u64 = 4096;
/// A vCPU takes 356 bytes, VMCOREINFO some thousand.
const MAX_NOTES_BYTES: u64 = 4 << 20;
/// Magic number, class, byte order and version; the system behind them does not matter.
const IDENT_BYTES: usize = 7;

/// A range of guest-physical memory in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadSegment {
    /// The kernel's address of the first byte.
    pub(crate) at: Gva,
    /// The guest-physical address of the first byte.
    pub(crate) gpa: Gpa,
    /// The number of bytes.
    pub(crate) bytes: u64,
    /// The place in the file.
    pub(crate) offset: u64,
}

/// The headers of a core file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreHeaders {
    /// The segments with bytes, in the order of the file.
    pub(crate) loads: Vec<LoadSegment>,
    /// The contents of all note segments.
    pub(crate) notes: Vec<u8>,
}

impl CoreHeaders {
    /// Reads the headers of `file`, which has `size` bytes.
    pub(crate) fn read(file: &File, size: u64) -> Result<Self, OpenDumpError> {
        let header = bytes(file, size, 0..HEADER_BYTES).map_err(|error| match error {
            // A shorter file is no core file.
            OpenDumpError::Truncated { .. } => OpenDumpError::NotACore,
            error => error,
        })?;
        let is_core = header.starts_with(&ELF_CLASS_64_LITTLE_ENDIAN_V1[..IDENT_BYTES])
            && half(&header, 16) == ET_CORE
            && half(&header, 18) == EM_X86_64
            && u64::from(half(&header, 54)) == PROGRAM_HEADER_BYTES;
        if !is_core {
            return Err(OpenDumpError::NotACore);
        }
        let (first, count) = (word(&header, 32), u64::from(half(&header, 56)));
        limit("segments", count, MAX_SEGMENTS)?;
        let end = first.saturating_add(count * PROGRAM_HEADER_BYTES);
        let table = bytes(file, size, first..end)?;
        let mut headers = Self::default();
        let each = usize::try_from(PROGRAM_HEADER_BYTES).unwrap_or(usize::MAX);
        for header in table.chunks_exact(each) {
            headers.add(file, size, header)?;
        }
        Ok(headers)
    }

    /// Takes the part with the program header `header`.
    fn add(&mut self, file: &File, size: u64, header: &[u8]) -> Result<(), OpenDumpError> {
        let (offset, len) = (word(header, 8), word(header, 32));
        let end = offset.saturating_add(len);
        match long(header, 0) {
            PT_LOAD if len > 0 => {
                within(size, end)?;
                self.loads.push(LoadSegment {
                    at: Gva(word(header, 16)),
                    gpa: Gpa(word(header, 24)),
                    bytes: len,
                    offset,
                });
            }
            PT_NOTE => {
                let all = len.saturating_add(self.notes.len() as u64);
                limit("bytes of notes", all, MAX_NOTES_BYTES)?;
                self.notes.extend(bytes(file, size, offset..end)?);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The bytes of `file` in `range`, which the caller has bounded.
fn bytes(file: &File, size: u64, range: Range<u64>) -> Result<Vec<u8>, OpenDumpError> {
    within(size, range.end)?;
    let offset = range.start;
    // The range is a few megabytes at the most.
    let len = usize::try_from(range.end.saturating_sub(offset)).unwrap_or(0);
    let mut bytes = vec![0; len];
    let read = file.read_exact_at(&mut bytes, offset);
    read.map_err(|source| DumpReadError {
        offset,
        len,
        source,
    })?;
    Ok(bytes)
}

fn within(size: u64, end: u64) -> Result<(), OpenDumpError> {
    match end <= size {
        true => Ok(()),
        false => Err(OpenDumpError::Truncated {
            bytes: size,
            described: end,
        }),
    }
}

fn limit(what: &'static str, count: u64, limit: u64) -> Result<(), OpenDumpError> {
    match count <= limit {
        true => Ok(()),
        false => Err(OpenDumpError::TooMany { what, count, limit }),
    }
}

/// The `N` bytes at `at`; zeros beyond the end.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let held = bytes.get(at..).and_then(|tail| tail.first_chunk());
    held.copied().unwrap_or([0; N])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}
