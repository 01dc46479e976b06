//! Events on their way to clients: a ring that vCPUs write to and clients read from, each at its own pace.
//!
//! A vCPU never waits for a client: it puts its event into the ring, the oldest ones fall out, and whoever has not read
//! those by then is told how many they were. What a client has read is known to the client's own cursor alone, so one
//! that never reads costs nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use probes::{Event, EventSink};
use tokio::sync::Notify;

/// What the events that are kept may take, bytes, about: 20 000 hits.
pub(crate) const KEPT_BYTES: usize = 16 << 20;

/// Keeps the last events. See the module's text.
#[derive(Debug)]
pub struct EventHub {
    ring: Mutex<Ring>,
    news: Notify,
    kept_bytes: usize,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// The sequence number of the first of them.
    oldest: u64,
    bytes: usize,
    ended: bool,
}

/// What a reader gets.
#[derive(Debug, PartialEq)]
pub(crate) struct Batch {
    /// So many were gone before they could be read.
    pub(crate) lost: u64,
    /// The number of the first of `events`, or of the one that comes next.
    pub(crate) first: u64,
    pub(crate) events: Vec<Arc<Event>>,
    /// Nothing follows.
    pub(crate) ended: bool,
}

impl Default for EventHub {
    fn default() -> Self {
        Self::keeping(KEPT_BYTES)
    }
}

impl EventHub {
    fn keeping(kept_bytes: usize) -> Self {
        Self {
            ring: Mutex::new(Ring {
                events: VecDeque::new(),
                oldest: 1,
                bytes: 0,
                ended: false,
            }),
            news: Notify::new(),
            kept_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the oldest event that is kept, and the one that the next event will have.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        let ring = self.lock();
        (ring.oldest, ring.next())
    }

    /// Nothing follows; readers are told so.
    pub fn end(&self) {
        self.lock().ended = true;
        self.news.notify_waiters();
    }

    /// The events from number `from` on, at most `most`; waits until there is one, or the end.
    pub(crate) async fn read(&self, from: u64, most: usize) -> Batch {
        loop {
            // Before it is looked, so that nothing is missed in between.
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            let batch = self.lock().batch(from, most);
            if !batch.events.is_empty() || batch.ended {
                return batch;
            }
            news.await;
        }
    }
}

impl EventSink for EventHub {
    fn event(&self, event: Event) {
        let event = Arc::new(event);
        // Freed when the lock has been given back.
        let mut gone = Vec::new();
        {
            let mut ring = self.lock();
            if ring.ended {
                return;
            }
            ring.bytes += bytes(&event);
            ring.events.push_back(event);
            while ring.bytes > self.kept_bytes
                && let Some(oldest) = ring.events.pop_front()
            {
                ring.bytes -= bytes(&oldest);
                ring.oldest += 1;
                gone.push(oldest);
            }
        }
        self.news.notify_waiters();
    }
}

impl Ring {
    fn next(&self) -> u64 {
        self.oldest + self.events.len() as u64
    }

    fn batch(&self, from: u64, most: usize) -> Batch {
        let first = from.clamp(self.oldest, self.next());
        let skip = usize::try_from(first - self.oldest).unwrap_or(usize::MAX);
        let events: Vec<_> = self.events.iter().skip(skip).take(most).cloned().collect();
        Batch {
            lost: first.saturating_sub(from),
            first,
            ended: self.ended && first + events.len() as u64 == self.next(),
            events,
        }
    }
}

/// What an event takes, with what it points to.
fn bytes(event: &Event) -> usize {
    let text = match event {
        Event::Hit(_) | Event::Return(_) => 0,
        Event::Note(note) => note.text.len() + note.probe.as_ref().map_or(0, String::len),
        Event::Summary(summary) => {
            let probe = |probe: &probes::ProbeSummary| {
                size_of_val(probe)
                    + probe.probe.len()
                    + probe.reason.as_ref().map_or(0, String::len)
                    + 64 * probe.missed.len()
            };
            summary.probes.iter().map(probe).sum()
        }
    };
    size_of::<Event>() + 2 * size_of::<usize>() + text
}

/// Gives every event to two sinks.
#[derive(Debug)]
pub struct Tee {
    first: Arc<dyn EventSink>,
    hub: Arc<EventHub>,
}

impl Tee {
    /// To `first`, which may have no room, and to `hub`, which always has.
    #[must_use]
    pub fn new(first: Arc<dyn EventSink>, hub: Arc<EventHub>) -> Self {
        Self { first, hub }
    }
}

impl EventSink for Tee {
    fn event(&self, event: Event) {
        self.hub.event(event.clone());
        self.first.event(event);
    }

    fn has_room(&self) -> bool {
        self.first.has_room()
    }

    fn await_room(&self, limit: Duration) {
        self.first.await_room(limit);
    }
}

#[cfg(test)]
mod tests {
    use probes::Note;

    use super::*;

    fn note(ts_ns: u64) -> Event {
        Event::Note(Note {
            ts_ns,
            probe: None,
            text: String::new(),
        })
    }

    fn stamps(batch: &Batch) -> Vec<u64> {
        let stamp = |event: &Arc<Event>| match event.as_ref() {
            Event::Note(note) => note.ts_ns,
            other => panic!("{other:?}"),
        };
        batch.events.iter().map(stamp).collect()
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("runtime").block_on(future)
    }

    #[test]
    fn numbers_begin_at_one_and_nothing_is_read_twice() {
        let hub = EventHub::default();
        (0..5).for_each(|n| hub.event(note(n)));
        let batch = now(hub.read(1, 3));
        assert_eq!(
            (batch.lost, batch.first, stamps(&batch)),
            (0, 1, vec![0, 1, 2])
        );
        let batch = now(hub.read(4, 3));
        assert_eq!((batch.first, stamps(&batch)), (4, vec![3, 4]));
        assert!(!batch.ended);
        hub.end();
        assert!(now(hub.read(4, 3)).ended && now(hub.read(6, 3)).ended);
        assert!(!now(hub.read(1, 3)).ended, "two are left");
    }

    #[test]
    fn a_slow_reader_is_told_what_it_lost_and_memory_is_bounded() {
        let hub = EventHub::keeping(10 * bytes(&note(0)));
        (0..100).for_each(|n| hub.event(note(n)));
        assert_eq!(hub.numbers(), (91, 101));
        let batch = now(hub.read(5, 100));
        assert_eq!((batch.lost, batch.first), (86, 91));
        assert_eq!(stamps(&batch), (90..100).collect::<Vec<_>>());
    }

    #[test]
    fn one_event_larger_than_everything_is_not_kept() {
        let hub = EventHub::keeping(2 * bytes(&note(0)));
        hub.event(Event::Note(Note {
            ts_ns: 0,
            probe: None,
            text: "x".repeat(10_000),
        }));
        hub.event(note(1));
        let batch = now(hub.read(1, 10));
        assert_eq!((batch.lost, stamps(&batch)), (1, vec![1]));
    }

    #[test]
    fn whoever_waits_is_woken() {
        let hub = Arc::new(EventHub::default());
        let writer = std::thread::spawn({
            let hub = Arc::clone(&hub);
            move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                hub.event(note(7));
            }
        });
        assert_eq!(stamps(&now(hub.read(1, 10))), [7]);
        writer.join().expect("thread");
    }
}
