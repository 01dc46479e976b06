//! A writer that counts the written bytes.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes to a port, and counts the bytes. Without the count, bytes that do not arrive would be lost silently.
#[derive(Debug)]
pub(super) struct Counted<W> {
    inner: W,
    bytes: Arc<AtomicU64>,
}

impl<W: Write> Counted<W> {
    /// A writer to `inner`.
    pub(super) fn new(inner: W) -> Self {
        Self {
            inner,
            bytes: Arc::default(),
        }
    }

    /// The number of bytes written; goes on counting while the writer is elsewhere.
    pub(super) fn count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes)
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes
            .fetch_add(u64::try_from(written).unwrap_or(u64::MAX), Ordering::AcqRel);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_outlives_the_writer() {
        let mut writer = Counted::new(Vec::new());
        let count = writer.count();
        writer.write_all(b"12345").expect("write");
        drop(writer);
        assert_eq!(count.load(Ordering::Acquire), 5);
    }
}
