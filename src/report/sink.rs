//! The posting ends of the queue: the event sink, and the writer of the console.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use events::{Event, EventSink, Summary};

use crate::outbox::{Outbox, Posted};

/// A message to the writing thread.
#[derive(Debug)]
pub(super) enum Message {
    /// An event.
    Event(Box<Event>),
    /// Bytes that the guest wrote to its serial line.
    Console(Vec<u8>),
    /// Nothing follows.
    End {
        /// The run's summary, if the run came to one.
        summary: Option<Box<Summary>>,
        /// The losses at the queue's limit.
        refused: Refused,
    },
}

/// The losses at the queue's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) events: u64,
    pub(super) console_bytes: u64,
}

/// Counters of posts and of losses at the queue's limit. No memory is ordered by the counters.
#[derive(Debug, Default)]
pub(super) struct Posts {
    events: AtomicU64,
    refused_events: AtomicU64,
    refused_console_bytes: AtomicU64,
}

impl Posts {
    pub(super) fn refused(&self) -> Refused {
        Refused {
            events: self.refused_events.load(Ordering::Relaxed),
            console_bytes: self.refused_console_bytes.load(Ordering::Relaxed),
        }
    }

    /// The number of events posted, lost events included.
    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }
}

/// Posts events to the writing thread.
#[derive(Debug)]
pub(super) struct QueueSink {
    outbox: Outbox<Message>,
    posts: Arc<Posts>,
}

impl QueueSink {
    pub(super) fn new(outbox: Outbox<Message>, posts: Arc<Posts>) -> Self {
        Self { outbox, posts }
    }
}

impl EventSink for QueueSink {
    fn event(&self, event: Event) {
        self.posts.events.fetch_add(1, Ordering::Relaxed);
        if self.outbox.post(Message::Event(Box::new(event))) == Posted::Lost {
            self.posts.refused_events.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    fn await_room(&self, limit: Duration) {
        self.outbox.await_room(limit);
    }
}

/// Posts the console's bytes to the writing thread.
#[derive(Debug)]
pub(super) struct ConsoleWriter {
    outbox: Outbox<Message>,
    posts: Arc<Posts>,
}

impl ConsoleWriter {
    pub(super) fn new(outbox: Outbox<Message>, posts: Arc<Posts>) -> Self {
        Self { outbox, posts }
    }
}

impl io::Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.outbox.post(Message::Console(bytes.to_vec())) {
            Posted::Sent => Ok(bytes.len()),
            Posted::Lost => {
                let lost = bytes.len() as u64;
                self.posts
                    .refused_console_bytes
                    .fetch_add(lost, Ordering::Relaxed);
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    /// The writing thread flushes whenever the queue is empty.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use events::Note;

    use super::*;

    #[test]
    fn posts_refused_by_the_queue_are_counted() {
        let (outbox, receiver) = Outbox::new();
        let posts = Arc::<Posts>::default();
        let sink = QueueSink::new(outbox.clone(), Arc::clone(&posts));
        let mut console = ConsoleWriter::new(outbox, Arc::clone(&posts));
        let note = || {
            Event::Note(Note {
                ts_ns: 1,
                probe: None,
                text: String::new(),
            })
        };
        sink.event(note());
        console.write_all(b"hello").expect("there is room");
        assert_eq!((posts.events(), posts.refused()), (1, Refused::default()));
        drop(receiver);
        sink.event(note());
        console.write_all(b"hello").expect_err("nobody writes");
        let refused = Refused {
            events: 1,
            console_bytes: 5,
        };
        assert_eq!((posts.events(), posts.refused()), (2, refused));
    }
}
