//! The dump of a guest that has crashed: to a file here, or as frames to the launcher of a nested run.
//!
//! ```text
//!  run here:    the guest ends ──▶ main thread of the run: memory, registers ──▶ file
//!  run nested:  the guest ends ──▶ pid 1 of the outer Linux ── org.hyprobe.dump ──▶ nested-dump ──▶ file
//! ```
//!
//! The dump is taken when the guest has ended: the kernel's log then has the panic's last words.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use control::{Live, dump_ended};
use dump::{Piece, SparseFile, sparse};
use errors::chain;
use files::Opened;
use manifest::GuestEnd;
use thiserror::Error;

/// The core file of a guest that may crash. The file keeps its contents, unless the guest crashes.
#[derive(Debug)]
pub(crate) struct CoreFile {
    output: Opened,
    is_complete: Arc<AtomicBool>,
}

impl CoreFile {
    /// The dump replaces the contents of a regular file.
    pub(crate) fn new(output: Opened) -> Self {
        Self {
            output,
            is_complete: Arc::default(),
        }
    }

    /// The writer of the file.
    pub(crate) fn writer(&self) -> io::Result<CoreWriter> {
        let file = match self.output.try_clone()? {
            Opened::Regular(file) => SparseFile::regular(file),
            Opened::Stream(file) => SparseFile::stream(file),
        };
        Ok(CoreWriter {
            file,
            is_complete: Arc::clone(&self.is_complete),
        })
    }

    /// Whether the writer has written a dump.
    pub(crate) fn has_dump(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }
}

/// Writes the core file of a guest that has crashed.
#[derive(Debug)]
pub struct CoreWriter {
    file: SparseFile,
    is_complete: Arc<AtomicBool>,
}

impl CoreWriter {
    /// Writes a dump by `write`, which finishes the file. Returns the size.
    pub(crate) fn write<E>(
        self,
        write: impl FnOnce(SparseFile) -> Result<u64, E>,
    ) -> Result<u64, E> {
        let written = write(self.file);
        self.is_complete.store(written.is_ok(), Ordering::Release);
        written
    }
}

/// Takes the dump of a guest that has crashed.
pub(crate) enum CrashDump {
    /// The core file.
    File(CoreWriter),
    /// The other end makes the core file.
    Frames(Box<dyn Write + Send>),
}

impl std::fmt::Debug for CrashDump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File(_) => "File",
            Self::Frames(_) => "Frames",
        })
    }
}

/// The reason why there is no dump of a crash.
#[derive(Debug, Error)]
pub(crate) enum CrashDumpError {
    /// The memory or the registers.
    #[error(transparent)]
    Guest(#[from] control::DumpEndedError),
    /// The output.
    #[error("cannot write the dump")]
    Write(#[from] io::Error),
}

/// Whether a guest that has ended by `end` has crashed.
pub(crate) fn is_crash(end: GuestEnd) -> bool {
    matches!(end, GuestEnd::Panic | GuestEnd::TripleFault)
}

impl CrashDump {
    /// The core file, if the dump goes to one.
    pub(crate) fn into_file(self) -> Option<CoreWriter> {
        match self {
            Self::File(file) => Some(file),
            Self::Frames(_) => None,
        }
    }

    /// Writes the dump of `machine`, which has ended by `end`. `print_note` gets a sentence for each missing part. Returns the size of the core file.
    pub(crate) fn write(
        self,
        machine: &Live,
        end: GuestEnd,
        print_note: &dyn Fn(&str),
    ) -> Result<u64, CrashDumpError> {
        match self {
            Self::File(core) => core.write(|file| write_file(machine, end, file, print_note)),
            Self::Frames(port) => write_frames(machine, end, port),
        }
    }
}

/// Writes the core file to `file`, and remarks to `print_note`.
fn write_file(
    machine: &Live,
    end: GuestEnd,
    mut file: SparseFile,
    print_note: &dyn Fn(&str),
) -> Result<u64, CrashDumpError> {
    let begin = |_: u64, remarks: &[String]| {
        remarks.iter().for_each(|text| print_note(text));
        Ok(())
    };
    let written = dump_ended(machine, end, begin, |piece| match piece {
        Piece::Bytes(bytes) => file.write(bytes),
        Piece::Zeros(count) => {
            file.zeros(count);
            Ok(())
        }
    });
    match written {
        Ok(_) => Ok(file.finish()?),
        Err(error) => {
            file.discard();
            Err(error.into())
        }
    }
}

/// Writes the frames to `port`, errors included.
fn write_frames(
    machine: &Live,
    end: GuestEnd,
    port: Box<dyn Write + Send>,
) -> Result<u64, CrashDumpError> {
    let port = std::cell::RefCell::new(port);
    let send = |fill: &dyn Fn(&mut Vec<u8>)| {
        let mut frames = Vec::new();
        fill(&mut frames);
        port.borrow_mut().write_all(&frames)
    };
    let begin = |bytes: u64, remarks: &[String]| {
        send(&|frames| {
            sparse::begin(bytes, frames);
            remarks.iter().for_each(|text| sparse::remark(text, frames));
        })
    };
    let written = dump_ended(machine, end, begin, |piece| {
        send(&|frames| sparse::add(piece, frames))
    });
    match written {
        Ok(bytes) => {
            send(&|frames| sparse::end(bytes, frames))?;
            Ok(bytes)
        }
        Err(error) => {
            send(&|frames| sparse::fail(&chain(&error), frames))?;
            Err(error.into())
        }
    }
}
