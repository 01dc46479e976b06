//! Event ring between vCPU threads, which write, and clients, which read at their own pace.
//!
//! A vCPU never waits for a client. The vCPU thread puts the event into the ring, and the oldest events fall out. A client that is too
//! slow gets the number of lost events. Only the client's cursor has the client's position, so a client that never reads costs nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use events::{
    Event, EventSink, Field, FieldValue, GuestMembers, GuestString, Param, ProgramFrame,
    StackFrame, Typed,
};
use tokio::sync::Notify;

/// Approximate size limit of the retained events in bytes: room for about 20 000 hits.
pub(crate) const KEPT_BYTES: usize = 16 << 20;

/// Event ring: retains the last events, and wakes waiting readers.
#[derive(Debug)]
pub struct EventHub {
    ring: Mutex<Ring>,
    news: Notify,
    kept_bytes: usize,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// Sequence number of the first retained event, or of the next event if the ring is empty.
    oldest: u64,
    bytes: usize,
    ended: bool,
}

/// Result of a read: events in order.
#[derive(Debug, PartialEq)]
pub(crate) struct Batch {
    /// Number of events dropped from the ring before the reader read them.
    pub(crate) lost: u64,
    /// Sequence number of the first of `events`; if `events` is empty, of the next event.
    pub(crate) first: u64,
    pub(crate) events: Vec<Arc<Event>>,
    /// The run has ended, and no event follows `events`.
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

    /// Sequence numbers of the oldest retained event and of the next event.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        let ring = self.lock();
        (ring.oldest, ring.next())
    }

    /// Ends the stream of events. Readers get the retained events and then the end; later events are dropped.
    pub fn end(&self) {
        self.lock().ended = true;
        self.news.notify_waiters();
    }

    /// Reads at most `most` events from number `from` on. Waits until an event is there, or until the end.
    pub(crate) async fn read(&self, from: u64, most: usize) -> Batch {
        loop {
            // Enabled before the look into the ring, so that no event in between is missed.
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
        // Dropped events are freed after the lock is released.
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

/// Approximate size of an event in bytes, with its heap data.
fn bytes(event: &Event) -> usize {
    let text = match event {
        Event::Hit(hit) => {
            let params = hit.params.iter().flatten();
            let program = of_program(hit.program_stack.as_deref());
            let fields = hit.fields.iter().flat_map(|fields| &fields.0);
            program
                + of_stack(hit.stack.as_deref())
                + params.map(of_param).sum::<usize>()
                + fields.map(of_field).sum::<usize>()
        }
        Event::Return(ret) => {
            let program = of_program(ret.program_stack.as_deref());
            program + of_stack(ret.stack.as_deref()) + ret.returned.as_ref().map_or(0, of_value)
        }
        Event::Note(note) => note.text.len() + note.probe.as_ref().map_or(0, String::len),
        Event::Summary(summary) => {
            let probe = |probe: &events::ProbeSummary| {
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

/// A parameter or member.
fn of_param(param: &Param) -> usize {
    size_of_val(param) + of_value(&param.typed)
}

/// A field of a record.
fn of_field(field: &Field) -> usize {
    let value = match &field.value {
        FieldValue::Text(text) => text.len(),
        FieldValue::List(list) => size_of_val(&**list),
        FieldValue::Number(_) | FieldValue::Unknown => 0,
    };
    size_of_val(field) + value
}

/// The heap data of a value.
fn of_value(typed: &Typed) -> usize {
    let string = match &typed.string {
        Some(GuestString::Whole(text) | GuestString::Cut(text)) => text.len(),
        Some(GuestString::Fault(_)) | None => 0,
    };
    let members = match &typed.members {
        Some(GuestMembers::Whole(members)) => members.iter().map(of_param).sum(),
        Some(GuestMembers::Fault(_)) | None => 0,
    };
    let names = [&typed.means, &typed.error].into_iter().flatten();
    string + members + names.map(String::len).sum::<usize>()
}

/// The heap data of a stack.
fn of_stack(frames: Option<&[StackFrame]>) -> usize {
    let frame = |frame: &StackFrame| {
        let names = [&frame.symbol, &frame.module, &frame.build_id];
        let names = names.into_iter().flatten();
        size_of_val(frame) + names.map(String::len).sum::<usize>()
    };
    frames.into_iter().flatten().map(frame).sum()
}

/// The heap data of a program's stack. Frames share paths, which are counted for each.
fn of_program(frames: Option<&[ProgramFrame]>) -> usize {
    let frame = |frame: &ProgramFrame| {
        let path = frame.file.as_ref().map_or(0, |path| path.len());
        size_of_val(frame) + frame.symbol.as_ref().map_or(0, String::len) + path
    };
    frames.into_iter().flatten().map(frame).sum()
}

/// Passes every event to two sinks.
#[derive(Debug)]
pub struct Tee {
    first: Arc<dyn EventSink>,
    hub: Arc<EventHub>,
}

impl Tee {
    /// Passes events to `first`, which may have no room, and to `hub`, which always has room.
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
    use events::Note;

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
    fn slow_reader_gets_lost_count_and_memory_is_bounded() {
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
    fn stacks_count_as_memory() {
        let frame = serde_json::json!({
            "address": "0x1", "symbol": "s".repeat(100), "module": "m", "build_id": "0".repeat(40),
        });
        let number = "0x0";
        let registers = [
            "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15", "rip", "rflags",
        ];
        let registers: serde_json::Map<_, _> = registers
            .iter()
            .map(|&name| (name.to_owned(), number.into()))
            .collect();
        let mut event = serde_json::json!({
            "type": "return", "probe": "kretprobe:f", "ts_ns": 1, "took_ns": 1, "vcpu": 0, "ip": number,
            "symbol": "f+0x0", "retval": number, "regs": registers,
        });
        let plain: Event = serde_json::from_value(event.clone()).expect("a return");
        event["stack"] = vec![frame; 64].into();
        let with_stack: Event = serde_json::from_value(event).expect("a return");
        let frame_bytes = size_of::<StackFrame>() + 141;
        assert_eq!(bytes(&with_stack) - bytes(&plain), 64 * frame_bytes);
    }

    #[test]
    fn members_count_as_memory() {
        let text = GuestString::Whole("x".repeat(100));
        let mut member = Param {
            name: "text".into(),
            typed: Typed::without_value("const char *".into()),
        };
        let plain = of_param(&member);
        member.typed.string = Some(text);
        assert_eq!(of_param(&member) - plain, 100);
        let mut typed = Typed::without_value("struct s *".into());
        typed.members = Some(GuestMembers::Whole(vec![member.clone(); 6]));
        assert_eq!(of_value(&typed), 6 * of_param(&member));
    }

    #[test]
    fn waiting_reader_is_woken_by_an_event() {
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
