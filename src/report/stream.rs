//! A stream that is written in batches, and counts its losses.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of a batch.
const BATCH_BYTES: usize = 1 << 16;
/// The size of a write. A write to a pipe returns when all bytes are in the pipe, so the progress of a slow reader shows in steps of
/// this size.
const PIECE_BYTES: usize = 1 << 12;

/// Counters of the bytes and events that the streams of a run have written. The thread that waits for the end of the output reads
/// them. No memory is ordered by the counters.
#[derive(Debug, Default)]
pub(super) struct Written {
    bytes: AtomicU64,
    events: AtomicU64,
}

impl Written {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }
}

/// Pending bytes of an output. After the first failure, the stream counts bytes and writes none, so that the written
/// lines are whole, except for the last.
pub(super) struct Stream {
    name: String,
    to: Box<dyn Write + Send>,
    is_terminal: bool,
    pending: Vec<u8>,
    pending_events: u64,
    dropped: u64,
    lost_bytes: u64,
    failure: Option<io::Error>,
    written: Arc<Written>,
}

impl Stream {
    pub(super) fn new(
        name: String,
        to: impl Write + Send + 'static,
        is_terminal: bool,
        written: &Arc<Written>,
    ) -> Self {
        Self {
            name,
            to: Box::new(to),
            is_terminal,
            pending: Vec::new(),
            pending_events: 0,
            dropped: 0,
            lost_bytes: 0,
            failure: None,
            written: Arc::clone(written),
        }
    }

    pub(super) fn stdout(written: &Arc<Written>) -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self::new("standard output".to_owned(), stdout, is_terminal, written)
    }

    pub(super) fn stderr(written: &Arc<Written>) -> Self {
        let stderr = io::stderr();
        let is_terminal = stderr.is_terminal();
        Self::new("standard error".to_owned(), stderr, is_terminal, written)
    }

    /// Whether the stream is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Adds bytes of the console or the summary.
    pub(super) fn push(&mut self, format: impl FnOnce(&mut Vec<u8>)) {
        format(&mut self.pending);
        self.limit();
    }

    /// Adds one event, which `format` writes.
    pub(super) fn event(&mut self, format: impl FnOnce(&mut Vec<u8>)) {
        format(&mut self.pending);
        self.pending_events += 1;
        self.limit();
    }

    fn limit(&mut self) {
        if self.pending.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Writes the pending bytes.
    pub(super) fn flush(&mut self) {
        let mut left = self.pending.as_slice();
        if self.failure.is_none() && !left.is_empty() {
            self.failure = write_on(self.to.as_mut(), &mut left, &self.written).err();
        }
        if self.failure.is_none() {
            let events = self.pending_events;
            self.written.events.fetch_add(events, Ordering::Relaxed);
        } else {
            self.dropped += self.pending_events;
            // A failed flush may have lost any part of the batch.
            let lost = if left.is_empty() {
                self.pending.len()
            } else {
                left.len()
            };
            self.lost_bytes += lost as u64;
        }
        self.pending.clear();
        self.pending_events = 0;
    }

    /// Whether no bytes are pending.
    pub(super) fn is_flushed(&self) -> bool {
        self.pending.is_empty()
    }

    /// Events that could not be written.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether the other end of a pipe has been closed.
    pub(super) fn is_closed(&self) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The stream's name, the number of lost bytes and the error, unless the reader closed its end.
    /// `refused` says whether the queue refused bytes of the stream.
    pub(super) fn into_failure(self, refused: bool) -> Option<(String, u64, io::Error)> {
        let too_slow = || io::Error::new(io::ErrorKind::TimedOut, "it takes output too slowly");
        let failure = self.failure.or_else(|| refused.then(too_slow))?;
        let is_closed = failure.kind() == io::ErrorKind::BrokenPipe;
        (!is_closed).then_some((self.name, self.lost_bytes, failure))
    }
}

/// Writes `left`, and removes the written bytes from `left`.
fn write_on(to: &mut dyn Write, left: &mut &[u8], written: &Written) -> io::Result<()> {
    while !left.is_empty() {
        let piece = left.get(..PIECE_BYTES).unwrap_or(left);
        match to.write(piece) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                *left = left.get(bytes..).unwrap_or_default();
                written.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    to.flush()
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a number of bytes, and then fails.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken == 0 {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(taken)
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unwritten_events_are_counted() {
        let written = Arc::default();
        let mut stream = Stream::new("x".to_owned(), Full(10), false, &written);
        let event = |stream: &mut Stream| stream.event(|out| out.extend_from_slice(b"12345678\n"));
        event(&mut stream);
        stream.flush();
        assert_eq!(stream.dropped(), 0);
        event(&mut stream);
        event(&mut stream);
        stream.flush();
        event(&mut stream);
        stream.flush();
        assert_eq!(stream.dropped(), 3);
        assert_eq!((written.events(), written.bytes()), (1, 10));
        assert!(!stream.is_closed());
        let (name, bytes, error) = stream.into_failure(false).expect("failure");
        // Of four lines of nine bytes, ten bytes are written.
        assert_eq!(
            (name.as_str(), bytes, error.kind()),
            ("x", 26, io::ErrorKind::StorageFull)
        );
    }

    #[test]
    fn bytes_that_never_reached_a_stream_are_its_failure() {
        let stream = || Stream::new("x".to_owned(), Full(10), false, &Arc::default());
        assert!(stream().into_failure(false).is_none());
        let (name, bytes, error) = stream().into_failure(true).expect("failure");
        assert_eq!(
            (name.as_str(), bytes, error.kind()),
            ("x", 0, io::ErrorKind::TimedOut)
        );
    }
}
