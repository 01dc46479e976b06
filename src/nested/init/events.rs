//! Events on their way out: from vCPU threads through a channel to one thread that writes.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};
use probes::{Event, EventSink};

/// Beyond that, vCPUs wait: nothing is lost, the guest is slowed down.
const QUEUED_EVENTS: usize = 16 << 10;
/// One write is one notification of the host, which is dear under emulation.
const BATCH_BYTES: usize = 64 << 10;

/// The sink that the run inside is given.
#[derive(Debug)]
pub(super) struct EventsPort {
    queue: Sender<Message>,
    writer: Mutex<Option<JoinHandle<u64>>>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are events, and a box would be an allocation for each hit"
)]
enum Message {
    Event(Event),
    End,
}

impl EventsPort {
    /// Starts the thread that writes to `port`.
    pub(super) fn start(port: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, queued) = bounded(QUEUED_EVENTS);
        let writer = thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || write_all(&queued, port))?;
        Ok(Self {
            queue,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Writes what is queued and returns how many events could not be written. Later events are dropped by the caller's
    /// own choice.
    pub(super) fn finish(&self) -> u64 {
        // An error means that the thread is gone, which the join tells better.
        let _ = self.queue.send(Message::End);
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        writer
            .and_then(|writer| writer.join().ok())
            .unwrap_or_default()
    }
}

impl EventSink for EventsPort {
    fn event(&self, event: Event) {
        // An error means that the run is over.
        let _ = self.queue.send(Message::Event(event));
    }
}

/// Returns how many events could not be written.
fn write_all(queued: &Receiver<Message>, mut port: impl Write) -> u64 {
    let mut lines = Vec::with_capacity(BATCH_BYTES);
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
            }
            next = match lines.len() < BATCH_BYTES {
                true => queued.try_recv().ok(),
                false => None,
            };
        }
        if port.write_all(&lines).is_err() {
            lost += in_lines;
        }
        lines.clear();
        in_lines = 0;
    }
    lost
}

/// Appends one line, or nothing.
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
    use std::sync::Arc;

    use probes::Note;

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
        let port = Shared::default();
        let events = Arc::new(EventsPort::start(port.clone()).expect("thread"));
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
    fn what_cannot_be_written_is_counted_and_nobody_waits() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let events = EventsPort::start(Gone).expect("thread");
        (0..100).for_each(|ts| events.event(note(ts)));
        assert_eq!(events.finish(), 100);
        events.event(note(0));
        assert_eq!(events.finish(), 0);
    }
}
