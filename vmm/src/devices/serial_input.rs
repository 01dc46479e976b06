//! Input for the serial port, from any descriptor, by the event loop.
//!
//! ```text
//!            readable                    FIFO full
//! Listening ──────────▶ read, enqueue ───────────▶ Waiting (source not polled)
//!     ▲                       │ end of input          │ FIFO emptied by the guest
//!     └───────────────────────┼───────────────────────┘
//!                             ▼
//!                           Ended
//! ```
//!
//! The loop acts on the readiness of every descriptor in the poll set, so the loop never spins.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use event_manager::{EventOps, Events, MutEventSubscriber};
use vmm_sys_util::epoll::EventSet;

use super::serial::Serial;

/// Bytes read at a time: the size of the FIFO.
const CHUNK_BYTES: usize = 64;

/// Whether the source is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// In the poll set.
    Listening,
    /// Out of the poll set until the guest makes room.
    Waiting,
    /// A regular file or `/dev/null`, which cannot be polled and never blocks: read on whenever
    /// there is room.
    AlwaysReady,
    /// At its end, or broken.
    Ended,
}

/// An event subscriber that feeds a descriptor's bytes to a serial port.
#[derive(Debug)]
pub struct SerialInput {
    serial: Arc<Serial>,
    input: File,
    source: Source,
    /// Bytes read from the input that did not fit into the FIFO.
    left: Vec<u8>,
}

impl SerialInput {
    /// Feeds the bytes of `input`, for instance a duplicate of the standard input's descriptor, to
    /// `serial`.
    #[must_use]
    pub fn new(serial: Arc<Serial>, input: File) -> Self {
        Self {
            serial,
            input,
            source: Source::Waiting,
            left: Vec::new(),
        }
    }

    /// Reads and enqueues once. The source's readiness decides about the next call.
    fn feed(&mut self) {
        if !self.drain_left() {
            self.set_waiting();
            return;
        }
        let room = self.serial.room().min(CHUNK_BYTES);
        if room == 0 {
            self.set_waiting();
            return;
        }
        let mut chunk = [0; CHUNK_BYTES];
        match self.input.read(&mut chunk[..room]) {
            Ok(0) => self.source = Source::Ended,
            Ok(read) => {
                self.left.extend_from_slice(&chunk[..read]);
                if !self.drain_left() {
                    self.set_waiting();
                }
            }
            Err(error) if is_transient(&error) => {}
            Err(_) => self.source = Source::Ended,
        }
    }

    /// Enqueues the rest of the last chunk. Returns whether the FIFO took the whole rest.
    fn drain_left(&mut self) -> bool {
        let taken = self.serial.enqueue(&self.left);
        self.left.drain(..taken);
        self.left.is_empty()
    }

    fn set_waiting(&mut self) {
        if self.source == Source::Listening {
            self.source = Source::Waiting;
        }
    }

    fn listen(&mut self, ops: &mut EventOps<'_>) {
        match ops.add(Events::new(&self.input, EventSet::IN)) {
            Ok(()) => self.source = Source::Listening,
            // A source that cannot be polled is always ready.
            Err(_) => {
                self.source = Source::AlwaysReady;
                self.feed();
            }
        }
    }

    fn room_made(&mut self, ops: &mut EventOps<'_>) {
        // Non-blocking: fails only if another reader has taken the event.
        let _ = self.serial.room_event().read();
        match self.source {
            Source::Waiting => {
                if self.drain_left() {
                    self.listen(ops);
                }
            }
            Source::AlwaysReady => self.feed(),
            Source::Listening | Source::Ended => {}
        }
    }

    fn source_ready(&mut self, ops: &mut EventOps<'_>) {
        self.feed();
        if self.source != Source::Listening {
            // Fails only if the input is not in the set, which is the wanted state.
            let _ = ops.remove(Events::empty(&self.input));
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
    )
}

impl MutEventSubscriber for SerialInput {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        // Without the event, input would stop at the first full FIFO: better no input at all.
        match ops.add(Events::new(self.serial.room_event(), EventSet::IN)) {
            Ok(()) => self.listen(ops),
            Err(_) => self.source = Source::Ended,
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        use std::os::fd::AsRawFd;

        if events.fd() == self.input.as_raw_fd() {
            self.source_ready(ops);
        } else {
            self.room_made(ops);
        }
    }
}

#[cfg(test)]
mod tests;
