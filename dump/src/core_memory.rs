//! The guest-physical memory in a core file.
//!
//! Each read is a system call and not an access to mapped memory: if the file is cut while hyprobe reads, the read fails. The reader of memory learns
//! only that the address has no bytes, as for memory that the guest does not have. So the first error of the system is kept for the user.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use address::{Gpa, PAGE_LEN};
use introspect::{PhysMemory, Unreadable};

use crate::core_error::DumpReadError;
use crate::core_headers::LoadSegment;
use crate::page_cache::PageCache;

/// Memory in a file.
#[derive(Debug)]
pub(crate) struct CoreMemory {
    file: File,
    segments: Vec<LoadSegment>,
    cache: RefCell<PageCache>,
    /// The first error of the system.
    failure: RefCell<Option<DumpReadError>>,
}

impl CoreMemory {
    /// The memory that `segments` place in `file`. If segments overlap, the first counts.
    pub(crate) fn new(file: File, segments: Vec<LoadSegment>) -> Self {
        Self {
            file,
            segments,
            cache: RefCell::default(),
            failure: RefCell::default(),
        }
    }

    /// The first read of the file that failed since the last call. The addresses that were read meanwhile count as missing, so answers are wrong.
    pub(crate) fn take_failure(&self) -> Option<DumpReadError> {
        self.failure.take()
    }

    fn keep_failure(&self, offset: u64, len: usize, source: io::Error) {
        let failure = DumpReadError {
            offset,
            len,
            source,
        };
        self.failure.borrow_mut().get_or_insert(failure);
    }

    /// Fills `buf` from the file, segment by segment.
    fn read_file(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let failed = Unreadable {
            gpa,
            len: buf.len(),
        };
        let (mut at, mut rest) = (gpa, buf);
        while !rest.is_empty() {
            let (offset, held) = self.place(at).ok_or(failed)?;
            let len = usize::try_from(held).unwrap_or(usize::MAX);
            let (part, tail) = rest.split_at_mut(len.min(rest.len()));
            let read = self.file.read_exact_at(part, offset);
            read.map_err(|error| {
                self.keep_failure(offset, part.len(), error);
                failed
            })?;
            if !tail.is_empty() {
                at = at.checked_add(part.len() as u64).ok_or(failed)?;
            }
            rest = tail;
        }
        Ok(())
    }

    /// The place of `gpa` in the file, and the number of bytes from there on in one segment.
    fn place(&self, gpa: Gpa) -> Option<(u64, u64)> {
        self.segments.iter().find_map(|segment| {
            let within = gpa.offset_from(segment.gpa)?;
            let left = segment.bytes.checked_sub(within).filter(|left| *left > 0)?;
            Some((segment.offset.checked_add(within)?, left))
        })
    }
}

impl PhysMemory for CoreMemory {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let page = gpa.page();
        let start = usize::try_from(gpa.page_offset()).unwrap_or(PAGE_LEN);
        let is_in_page = start.saturating_add(buf.len()) <= PAGE_LEN;
        if is_in_page
            && let Ok(bytes) = self
                .cache
                .borrow_mut()
                .get(page, |bytes| self.read_file(page, bytes))
        {
            buf.copy_from_slice(&bytes[start..start + buf.len()]);
            return Ok(());
        }
        // A part of the page may be missing in the file.
        self.read_file(gpa, buf)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use address::Gva;

    use super::*;

    /// A file of 4 pages, whose bytes are the numbers of the pages, and two segments: pages 1 and 2, and half of page 3.
    fn memory() -> (tempfile::NamedTempFile, CoreMemory) {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        for number in 0..4 {
            file.write_all(&[number; PAGE_LEN]).expect("written");
        }
        let segment = |gpa, bytes, offset| LoadSegment {
            at: Gva(0),
            gpa: Gpa(gpa),
            bytes,
            offset,
        };
        let segments = vec![
            segment(0x10_0000, 0x2000, 0x1000),
            segment(0x10_2000, 0x800, 0x3000),
        ];
        let memory = CoreMemory::new(file.reopen().expect("open"), segments);
        (file, memory)
    }

    #[test]
    fn bytes_come_from_each_segment_s_place_in_the_file() {
        let (_file, memory) = memory();
        let read = |gpa, len| {
            let mut bytes = vec![0; len];
            memory.read(Gpa(gpa), &mut bytes).map(|()| bytes)
        };
        assert_eq!(read(0x10_0ffe, 4), Ok(vec![1, 1, 2, 2]));
        assert_eq!(read(0x10_1ffe, 4), Ok(vec![2, 2, 3, 3]));
        assert_eq!(read(0x10_27ff, 1), Ok(vec![3]));
        let all = read(0x10_0000, 0x2800).expect("all bytes");
        assert_eq!((all[0x1000], all[0x27ff]), (2, 3));
        for (gpa, len) in [(0x10_27ff, 2), (0xf_ffff, 2), (u64::MAX, 2), (0, 1)] {
            let gpa_of_error = Gpa(gpa);
            assert_eq!(
                read(gpa, len),
                Err(Unreadable {
                    gpa: gpa_of_error,
                    len
                })
            );
        }
    }

    #[test]
    fn file_that_is_cut_meanwhile_is_an_error_of_the_file() {
        let (file, memory) = memory();
        file.as_file().set_len(0x2000).expect("cut");
        assert!(memory.read(Gpa(0x10_0000), &mut [0; 8]).is_ok());
        assert!(memory.read(Gpa(0), &mut [0; 8]).is_err());
        assert!(
            memory.take_failure().is_none(),
            "the guest has no such memory"
        );
        assert!(memory.read(Gpa(0x10_1000), &mut [0; 8]).is_err());
        let failure = memory.take_failure().expect("the file is cut");
        assert_eq!(failure.offset, 0x2000);
        assert_eq!(failure.source.kind(), io::ErrorKind::UnexpectedEof);
        assert!(memory.take_failure().is_none());
    }

    #[test]
    fn error_of_the_system_is_kept_for_the_user() {
        let segment = LoadSegment {
            at: Gva(0),
            gpa: Gpa(0),
            bytes: 0x2000,
            offset: 0x1000,
        };
        // The system reads no bytes of a directory.
        let folder = tempfile::tempdir().expect("tempdir");
        let folder = File::open(folder.path()).expect("open");
        let memory = CoreMemory::new(folder, vec![segment]);
        for gpa in [0x1ff0, 0] {
            assert!(memory.read(Gpa(gpa), &mut [0; 8]).is_err());
        }
        let failure = memory.take_failure().expect("an error");
        assert_eq!(failure.source.kind(), io::ErrorKind::IsADirectory);
        assert_eq!(
            failure.to_string(),
            "cannot read 4096 bytes at byte 8192 of the file"
        );
    }
}
