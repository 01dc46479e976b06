//! A stream that is written in batches, and counts what it could not take.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};

/// More than this is not held back.
const BATCH_BYTES: usize = 1 << 16;

/// Bytes on their way out. After the first failure everything is counted and nothing is written, so that what was
/// written is whole lines but for the last.
pub(super) struct Stream {
    name: String,
    to: Box<dyn Write + Send>,
    is_terminal: bool,
    pending: Vec<u8>,
    pending_events: u64,
    dropped: u64,
    failure: Option<io::Error>,
}

impl Stream {
    pub(super) fn new(name: String, to: impl Write + Send + 'static, is_terminal: bool) -> Self {
        Self {
            name,
            to: Box::new(to),
            is_terminal,
            pending: Vec::new(),
            pending_events: 0,
            dropped: 0,
            failure: None,
        }
    }

    pub(super) fn stdout() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self::new("standard output".to_owned(), stdout, is_terminal)
    }

    pub(super) fn stderr() -> Self {
        let stderr = io::stderr();
        let is_terminal = stderr.is_terminal();
        Self::new("standard error".to_owned(), stderr, is_terminal)
    }

    /// Whether what is written here is seen at once.
    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Adds bytes that are no event.
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

    /// Writes what is pending.
    pub(super) fn flush(&mut self) {
        if self.failure.is_none() && !self.pending.is_empty() {
            self.failure = self
                .to
                .write_all(&self.pending)
                .and_then(|()| self.to.flush())
                .err();
        }
        if self.failure.is_some() {
            self.dropped += self.pending_events;
        }
        self.pending.clear();
        self.pending_events = 0;
    }

    /// Whether there is nothing that [`flush`](Self::flush) would write.
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

    /// Its name, and what went wrong.
    pub(super) fn into_failure(self) -> Option<(String, io::Error)> {
        Some((self.name, self.failure?))
    }
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

    /// Takes so many bytes and then no more.
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
    fn what_cannot_be_written_is_counted() {
        let mut stream = Stream::new("x".to_owned(), Full(10), false);
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
        assert!(!stream.is_closed());
        let (name, error) = stream.into_failure().expect("failure");
        assert_eq!(
            (name.as_str(), error.kind()),
            ("x", io::ErrorKind::StorageFull)
        );
    }
}
