//! The ends of the channel that the guest's threads hold.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{SendTimeoutError, Sender};
use probes::{Event, EventSink, Summary};

use crate::stop::StopSignal;

/// How often a vCPU that waits for room looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(100);
/// How long it waits for room once the run is to end. Whoever pressed ctrl-C wants the end more than this event.
const PATIENCE: Duration = Duration::from_secs(1);

/// What goes through the channel.
#[derive(Debug)]
pub(super) enum Message {
    /// An event.
    Event(Box<Event>),
    /// What the guest wrote to its serial line.
    Console(Vec<u8>),
    /// Nothing follows.
    End {
        /// How the run ended, if it got so far.
        summary: Option<Box<Summary>>,
        /// Events that did not get into the channel.
        dropped: u64,
    },
}

/// The way into the channel.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    messages: Sender<Message>,
    stop: StopSignal,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    Sent,
    Lost,
}

impl Outbox {
    pub(super) fn new(messages: Sender<Message>, stop: StopSignal) -> Self {
        Self { messages, stop }
    }

    /// Waits for room, but not for ever when the run is to end.
    fn post(&self, mut message: Message) -> Posted {
        loop {
            let stopping = self.stop.requested().is_some();
            match self
                .messages
                .send_timeout(message, if stopping { PATIENCE } else { LOOK })
            {
                Ok(()) => return Posted::Sent,
                Err(SendTimeoutError::Timeout(returned)) if !stopping => message = returned,
                Err(SendTimeoutError::Timeout(_) | SendTimeoutError::Disconnected(_)) => {
                    return Posted::Lost;
                }
            }
        }
    }
}

/// Sends events to the writer.
#[derive(Debug)]
pub(super) struct ChannelSink {
    outbox: Outbox,
    dropped: AtomicU64,
}

impl ChannelSink {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self {
            outbox,
            dropped: AtomicU64::new(0),
        }
    }

    /// Events that did not get into the channel.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl EventSink for ChannelSink {
    fn event(&self, event: Event) {
        if self.outbox.post(Message::Event(Box::new(event))) == Posted::Lost {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Sends the console's bytes to the writer.
#[derive(Debug)]
pub(super) struct ConsoleWriter {
    outbox: Outbox,
}

impl ConsoleWriter {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self { outbox }
    }
}

impl io::Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.outbox.post(Message::Console(bytes.to_vec())) {
            Posted::Sent => Ok(bytes.len()),
            Posted::Lost => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The writer flushes whenever nothing more is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use probes::Note;

    use super::*;
    use crate::stop::StopReason;

    fn note(n: u64) -> Event {
        Event::Note(Note {
            ts_ns: n,
            probe: None,
            text: String::new(),
        })
    }

    #[test]
    fn a_full_channel_makes_the_sender_wait_and_loses_nothing() {
        let (messages, receiver) = crossbeam_channel::bounded(1);
        let sink = std::sync::Arc::new(ChannelSink::new(Outbox::new(
            messages,
            StopSignal::default(),
        )));
        let sender = std::thread::spawn({
            let sink = std::sync::Arc::clone(&sink);
            move || (0..20).for_each(|n| sink.event(note(n)))
        });
        std::thread::sleep(LOOK * 2);
        for n in 0..20 {
            let Ok(Message::Event(event)) = receiver.recv() else {
                panic!("no event {n}")
            };
            assert_eq!(*event, note(n));
        }
        sender.join().expect("sender");
        assert_eq!(sink.dropped(), 0);
    }

    #[test]
    fn a_run_that_is_to_end_does_not_wait_for_ever_and_counts() {
        let (messages, _receiver) = crossbeam_channel::bounded(1);
        let stop = StopSignal::default();
        let sink = ChannelSink::new(Outbox::new(messages, stop.clone()));
        sink.event(note(0));
        stop.request(StopReason::Signal);
        sink.event(note(1));
        assert_eq!(sink.dropped(), 1);
    }
}
