//! A core file as frames, in which a run of zeros takes nine bytes.
//!
//! ```text
//!  0     1          9
//!  kind │ number  │ payload …      number: little-endian
//!  's'    size of the file         the first frame, unless the first is 'f'
//!  'd'    length    bytes          at most a megabyte, and not empty
//!  'z'    count                    zeros, at least one
//!  'r'    length    UTF-8          a part of the file that is missing, and why
//!  'f'    length    UTF-8          why the file is not complete: the last frame
//!  'e'    size of the file         the file is complete: the last frame
//! ```

use std::io::{self, Read};

use thiserror::Error;

use crate::file::SparseFile;
use crate::pieces::Piece;

const MAX_BYTES: usize = 1 << 20;
/// The length of a reason or a remark.
const MAX_WORDS_BYTES: usize = 4096;
/// A sender that goes on with remarks for ever is no sender of dumps.
const MAX_REMARKS: usize = 100;

fn frame(kind: u8, number: u64, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend(number.to_le_bytes());
}

/// Begins a file of `bytes` bytes.
pub fn begin(bytes: u64, out: &mut Vec<u8>) {
    frame(b's', bytes, out);
}

/// Adds a piece of the file.
pub fn add(piece: Piece<'_>, out: &mut Vec<u8>) {
    match piece {
        Piece::Zeros(count) => frame(b'z', count, out),
        Piece::Bytes(bytes) => {
            for bytes in bytes.chunks(MAX_BYTES) {
                frame(b'd', bytes.len() as u64, out);
                out.extend(bytes);
            }
        }
    }
}

/// Adds a remark about a missing part of the file.
pub fn remark(text: &str, out: &mut Vec<u8>) {
    words(b'r', text, out);
}

/// Ends a complete file of `bytes` bytes.
pub fn end(bytes: u64, out: &mut Vec<u8>) {
    frame(b'e', bytes, out);
}

/// Ends an incomplete file.
pub fn fail(reason: &str, out: &mut Vec<u8>) {
    words(b'f', reason, out);
}

fn words(kind: u8, text: &str, out: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(MAX_WORDS_BYTES)];
    frame(kind, text.len() as u64, out);
    out.extend(text.as_bytes());
}

/// The reason why no complete file came out of frames.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The frames end early.
    #[error("the dump breaks off after {bytes} bytes of {size}")]
    Broken {
        /// The bytes of the file that have arrived.
        bytes: u64,
        /// The size of the file.
        size: u64,
        /// The cause.
        source: io::Error,
    },
    /// The sender cannot complete the file.
    #[error("{0}")]
    Failed(String),
    /// The bytes are no frames.
    #[error("the dump's frame after {bytes} bytes is none: kind {kind:#04x}, number {number:#x}")]
    NoFrame {
        /// The bytes of the file that have arrived.
        bytes: u64,
        /// The frame's kind.
        kind: u8,
        /// The frame's number.
        number: u64,
    },
    /// The file is larger than the guest.
    #[error("the dump has {size} bytes, and at most {most} are possible")]
    TooLarge {
        /// The size of the file.
        size: u64,
        /// The maximum.
        most: u64,
    },
    /// The output.
    #[error("cannot write the dump")]
    Write(#[source] io::Error),
}

/// Takes news of a file that arrives.
pub trait News {
    /// `done` bytes of `size` have arrived.
    fn progress(&self, done: u64, size: u64);
    /// A part of the file is missing.
    fn remark(&self, text: &str);
}

/// Receives frames from `from`, and writes the file to `to`, at most `most` bytes. Returns the size.
///
/// # Errors
///
/// See [`ReceiveError`]; the file is then empty, if the output is a file.
pub fn receive(
    from: &mut impl Read,
    mut to: SparseFile,
    most: u64,
    news: &dyn News,
) -> Result<u64, ReceiveError> {
    match receive_into(from, &mut to, most, news) {
        Ok(()) => to.finish().map_err(ReceiveError::Write),
        Err(error) => {
            to.discard();
            Err(error)
        }
    }
}

fn receive_into(
    from: &mut impl Read,
    to: &mut SparseFile,
    most: u64,
    news: &dyn News,
) -> Result<(), ReceiveError> {
    let (mut done, mut size, mut remarks) = (0_u64, None, 0);
    let mut buffer = Vec::new();
    loop {
        let broken = |source| ReceiveError::Broken {
            bytes: done,
            size: size.unwrap_or(0),
            source,
        };
        let mut head = [0; 9];
        from.read_exact(&mut head).map_err(broken)?;
        let [kind, number @ ..] = head;
        let number = u64::from_le_bytes(number);
        let no_frame = ReceiveError::NoFrame {
            bytes: done,
            kind,
            number,
        };
        let left = size.map(|size| size - done);
        match (kind, left) {
            (b's', None) if number > most => {
                return Err(ReceiveError::TooLarge { size: number, most });
            }
            (b's', None) => size = Some(number),
            (b'd', Some(left)) if (1..=left.min(MAX_BYTES as u64)).contains(&number) => {
                buffer.resize(usize::try_from(number).unwrap_or(0), 0);
                from.read_exact(&mut buffer).map_err(broken)?;
                to.write(&buffer).map_err(ReceiveError::Write)?;
                done += number;
            }
            (b'z', Some(left)) if (1..=left).contains(&number) => {
                to.zeros(number);
                done += number;
            }
            (b'f', _) | (b'r', Some(_))
                if number <= MAX_WORDS_BYTES as u64 && remarks < MAX_REMARKS =>
            {
                buffer.resize(usize::try_from(number).unwrap_or(0), 0);
                from.read_exact(&mut buffer).map_err(broken)?;
                let text = String::from_utf8_lossy(&buffer);
                if kind == b'f' {
                    return Err(ReceiveError::Failed(text.into_owned()));
                }
                remarks += 1;
                news.remark(&text);
            }
            (b'e', Some(0)) => return Ok(()),
            _ => return Err(no_frame),
        }
        news.progress(done, size.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;

    /// Keeps the remarks.
    #[derive(Default)]
    struct Remarks(std::cell::RefCell<Vec<String>>);

    impl News for Remarks {
        fn progress(&self, done: u64, size: u64) {
            assert!(done <= size);
        }

        fn remark(&self, text: &str) {
            self.0.borrow_mut().push(text.to_owned());
        }
    }

    /// The frames of a file with a page of zeros between two bytes.
    fn frames() -> Vec<u8> {
        let mut frames = Vec::new();
        begin(4098, &mut frames);
        add(Piece::Bytes(b"a"), &mut frames);
        add(Piece::Zeros(4096), &mut frames);
        remark("no VMCOREINFO", &mut frames);
        add(Piece::Bytes(b"b"), &mut frames);
        end(4098, &mut frames);
        frames
    }

    fn received(path: &Path, frames: &[u8], most: u64) -> Result<u64, ReceiveError> {
        let file = SparseFile::regular(File::create(path).expect("a file"));
        let remarks = Remarks::default();
        let received = receive(&mut &*frames, file, most, &remarks)?;
        assert_eq!(remarks.0.into_inner(), ["no VMCOREINFO"]);
        Ok(received)
    }

    #[test]
    fn frames_become_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(received(file.path(), &frames(), 4098).expect("whole"), 4098);
        let mut expected = vec![0; 4098];
        (expected[0], expected[4097]) = (b'a', b'b');
        assert_eq!(std::fs::read(file.path()).expect("read"), expected);
    }

    #[test]
    fn incomplete_and_wrong_frames_leave_an_empty_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let whole = frames();
        let mut failed = Vec::new();
        begin(1 << 20, &mut failed);
        add(Piece::Bytes(b"a"), &mut failed);
        fail("the guest has ended", &mut failed);
        let frames = |kind, number: u64| {
            let mut frames = whole[..9].to_vec();
            super::frame(kind, number, &mut frames);
            frames
        };
        for (bytes, most, told) in [
            (
                whole[..whole.len() - 9].to_vec(),
                4098,
                "breaks off after 4098",
            ),
            (
                whole[..12].to_vec(),
                4098,
                "breaks off after 0 bytes of 4098",
            ),
            (whole.clone(), 4097, "at most 4097"),
            (failed, 1 << 20, "the guest has ended"),
            (frames(b'd', 0), 4098, "is none"),
            (frames(b'z', 0), 4098, "is none"),
            (frames(b'd', u64::MAX), 4098, "is none"),
            (frames(b'z', u64::MAX), 4098, "is none"),
            (frames(b'e', 4098), 4098, "is none"),
            (frames(b's', 4098), 4098, "is none"),
            (frames(b'f', u64::MAX), 4098, "is none"),
            (frames(0, 0), 4098, "is none"),
        ] {
            let error = received(file.path(), &bytes, most).expect_err(told);
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(std::fs::metadata(file.path()).expect("there").len(), 0);
        }
    }

    #[test]
    fn reason_may_come_before_the_size() {
        let mut frames = Vec::new();
        fail("KVM refuses", &mut frames);
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = received(file.path(), &frames, 1).expect_err("failed");
        assert_eq!(error.to_string(), "KVM refuses");
    }

    #[test]
    fn long_reason_is_cut_between_characters() {
        let mut frames = Vec::new();
        begin(1, &mut frames);
        fail(&"ä".repeat(4000), &mut frames);
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = received(file.path(), &frames, 1).expect_err("failed");
        assert_eq!(error.to_string(), "ä".repeat(2048));
    }
}
