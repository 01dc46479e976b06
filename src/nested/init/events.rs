//! Events and console output on their way out: from vCPU threads through a queue to a thread that writes to both ports.
//!
//! Until the run has ended, the launcher reads the ports only as fast as the reader of the launcher's output reads. So a port may block
//! for long, and no vCPU may wait for a port (see `outbox`).

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::Receiver;
use events::{Event, EventSink};

use crate::outbox::{Outbox, Posted};

/// Each write notifies the host, which is expensive under emulation.
const BATCH_BYTES: usize = 64 << 10;
/// The pause behind a write that has emptied the queue. A guest that prints posts each byte alone: the next write then has several.
const PAUSE: Duration = Duration::from_millis(2);

/// The event sink of the run inside.
#[derive(Debug)]
pub(super) struct EventsPort {
    queue: Outbox<Message>,
    /// Events and writes of the console that the queue did not take.
    refused: Arc<AtomicU64>,
    writer: Mutex<Option<JoinHandle<u64>>>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are events, and a box would be an allocation for each hit"
)]
#[derive(Debug)]
enum Message {
    Event(Event),
    Console(Vec<u8>),
    End,
}

/// The two ports.
struct Ports<E, C> {
    events: E,
    console: C,
}

impl EventsPort {
    /// Starts the thread that writes to the ports.
    pub(super) fn start(
        events: impl Write + Send + 'static,
        console: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, queued) = Outbox::new();
        let ports = Ports { events, console };
        let writer = thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || write_all(&queued, ports))?;
        Ok(Self {
            queue,
            refused: Arc::default(),
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Takes the guest's console.
    pub(super) fn console(&self) -> impl Write + Send + 'static {
        ConsoleWriter {
            queue: self.queue.clone(),
            refused: Arc::clone(&self.refused),
        }
    }

    /// Writes the queued messages. Returns the number of events and console writes that could not be written. The caller has chosen to
    /// drop later events.
    pub(super) fn finish(&self) -> u64 {
        // If the post fails, the writing thread has ended. The join below returns the thread's losses, unless the thread has panicked.
        let _ = self.queue.post_last(Message::End);
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let lost = writer
            .and_then(|writer| writer.join().ok())
            .unwrap_or_default();
        lost + self.refused.swap(0, Ordering::Relaxed)
    }
}

impl EventSink for EventsPort {
    fn event(&self, event: Event) {
        if self.queue.post(Message::Event(event)) == Posted::Lost {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    fn await_room(&self, limit: Duration) {
        self.queue.await_room(limit);
    }
}

/// Posts the console's bytes.
struct ConsoleWriter {
    queue: Outbox<Message>,
    refused: Arc<AtomicU64>,
}

impl Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.queue.post(Message::Console(bytes.to_vec())) {
            Posted::Sent => Ok(bytes.len()),
            Posted::Lost => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes until the end is posted. Returns how many events could not be written.
fn write_all(queued: &Receiver<Message>, mut ports: Ports<impl Write, impl Write>) -> u64 {
    let mut lines = Vec::with_capacity(BATCH_BYTES);
    let mut console = Vec::new();
    let (mut in_lines, mut lost, mut ended) = (0, 0, false);
    while !ended {
        let Ok(first) = queued.recv() else { break };
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::End => {
                    ended = true;
                    break;
                }
                Message::Event(event) => match append(&mut lines, &event) {
                    Ok(()) => in_lines += 1,
                    Err(_) => lost += 1,
                },
                Message::Console(bytes) => console.extend_from_slice(&bytes),
            }
            next = match lines.len() + console.len() < BATCH_BYTES {
                true => queued.try_recv().ok(),
                false => None,
            };
        }
        // An error of the console's port is no reason to stop the guest.
        let _ = ports.console.write_all(&console);
        console.clear();
        if ports.events.write_all(&lines).is_err() {
            lost += in_lines;
        }
        lines.clear();
        in_lines = 0;
        if !ended && queued.is_empty() {
            thread::sleep(PAUSE);
        }
    }
    lost
}

/// Appends the line of `event`, or nothing on an error.
fn append(lines: &mut Vec<u8>, event: &Event) -> serde_json::Result<()> {
    let before = lines.len();
    let result = serde_json::to_writer(&mut *lines, event);
    match result {
        Ok(()) => lines.push(b'\n'),
        Err(_) => lines.truncate(before),
    }
    result
}

#[cfg(test)]
mod tests {
    use events::Note;

    use super::*;

    fn note(ts_ns: u64) -> Event {
        Event::Note(Note {
            ts_ns,
            probe: None,
            text: "x".into(),
        })
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("lock").write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_event_of_every_thread_is_a_line() {
        let (port, serial) = (Shared::default(), Shared::default());
        let events = Arc::new(EventsPort::start(port.clone(), serial.clone()).expect("thread"));
        let mut console = events.console();
        console.write_all(b"boot\r\n").expect("there is room");
        let threads: Vec<_> = (0..4_u64)
            .map(|_| {
                let events = Arc::clone(&events);
                thread::spawn(move || (0..1000).for_each(|ts| events.event(note(ts))))
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("thread"));
        assert_eq!(events.finish(), 0);
        assert_eq!(serial.0.lock().expect("lock").as_slice(), b"boot\r\n");
        let written = port.0.lock().expect("lock");
        assert_eq!(written.split(|byte| *byte == b'\n').count(), 4001);
        assert!(
            written
                .split(|byte| *byte == b'\n')
                .take(4000)
                .all(|line| { serde_json::from_slice::<Event>(line).is_ok() })
        );
    }

    #[test]
    fn unwritable_events_are_counted_without_a_wait() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let events = EventsPort::start(Gone, Gone).expect("thread");
        (0..100).for_each(|ts| events.event(note(ts)));
        assert_eq!(events.finish(), 100);
        events.event(note(0));
        assert_eq!(events.finish(), 1);
        events.console().write_all(b"x").expect_err("nobody writes");
    }

    #[test]
    fn a_port_that_blocks_holds_up_no_event() {
        struct Blocked(std::sync::mpsc::Receiver<()>);
        impl Write for Blocked {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                // Until the test ends the sender.
                let _ = self.0.recv();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (opener, opened) = std::sync::mpsc::channel();
        let events = EventsPort::start(Blocked(opened), io::sink()).expect("thread");
        let mut posted = 0;
        while events.has_room() {
            events.event(note(posted));
            posted += 1;
        }
        drop(opener);
        assert_eq!(events.finish(), 0);
        assert!(events.has_room() && posted > 1000);
    }
}
