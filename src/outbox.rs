//! A queue between threads that must not block and the thread that writes the output.
//!
//! ```text
//! vCPU, records and control threads ── post ──▶ queue ──▶ writing thread ──▶ a pipe, a file, a port
//!        ▲                                        │
//!        └── vCPUs outside the guest await room ◀─┘ at ROOM messages
//! ```
//!
//! A post never blocks. A vCPU waits for room before it enters the guest, and counts as parked meanwhile, so pauses and the end of the
//! run go on. The queue exceeds [`ROOM`] by the events of one exit and one ring of records for each vCPU. Clients that change
//! probes post notes without the guest: at [`MOST`] messages, a post fails, and the poster counts the loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

/// The number of messages at which vCPUs wait: enough for a burst, and a fraction of a second for a terminal.
const ROOM: usize = 8192;
/// The number of messages at which vCPUs resume. If vCPUs resumed at each message read, a slow reader would cause many short holds.
/// KVM reports only holds of a second or more to the guest (`docs/pausing.md`), so the guest's watchdogs would report lockups.
const ROOM_AGAIN: usize = ROOM / 2;
/// The number of messages at which a post fails: some 50 MB of events.
const MOST: usize = 16 * ROOM;
/// The first and the last period of a wait for room.
const LOOK: Duration = Duration::from_millis(1);
const LATER_LOOK: Duration = Duration::from_millis(20);

/// The result of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Posted {
    /// The message is in the queue.
    Sent,
    /// The queue is full, or the writing thread has ended.
    Lost,
}

/// The posting end of a queue. Clones post to the same queue.
#[derive(Debug)]
pub(crate) struct Outbox<M> {
    messages: Sender<M>,
    /// The queue has come to [`ROOM`], and not yet back to [`ROOM_AGAIN`].
    is_full: Arc<AtomicBool>,
}

impl<M> Clone for Outbox<M> {
    fn clone(&self) -> Self {
        Self {
            messages: self.messages.clone(),
            is_full: Arc::clone(&self.is_full),
        }
    }
}

impl<M> Outbox<M> {
    /// Creates a queue. The writing thread gets the receiver.
    pub(crate) fn new() -> (Self, Receiver<M>) {
        let (messages, receiver) = crossbeam_channel::unbounded();
        let outbox = Self {
            messages,
            is_full: Arc::default(),
        };
        (outbox, receiver)
    }

    /// Posts without waiting.
    pub(crate) fn post(&self, message: M) -> Posted {
        match self.messages.len() < MOST {
            true => self.post_last(message),
            false => Posted::Lost,
        }
    }

    /// Posts the last message of the queue, even to a full queue.
    pub(crate) fn post_last(&self, message: M) -> Posted {
        self.messages
            .send(message)
            .map_or(Posted::Lost, |()| Posted::Sent)
    }

    /// Whether the queue has room.
    pub(crate) fn has_room(&self) -> bool {
        // If threads race here, the flag may be old. Each vCPU checks again before each entry to the guest.
        let was_full = self.is_full.load(Ordering::Relaxed);
        let limit = if was_full { ROOM_AGAIN } else { ROOM };
        let is_full = self.messages.len() >= limit;
        if is_full != was_full {
            self.is_full.store(is_full, Ordering::Relaxed);
        }
        !is_full
    }

    /// Waits for room, at most for `limit`.
    pub(crate) fn await_room(&self, limit: Duration) {
        let began = Instant::now();
        while !self.has_room() && began.elapsed() < limit {
            thread::sleep((began.elapsed() / 8).clamp(LOOK, LATER_LOOK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_to_a_full_queue_is_lost_at_once_and_the_last_is_not() {
        let (outbox, receiver) = Outbox::new();
        for n in 0..MOST {
            assert_eq!(outbox.has_room(), n < ROOM);
            assert_eq!(outbox.post(n), Posted::Sent);
        }
        assert_eq!(outbox.post(MOST), Posted::Lost);
        assert_eq!(outbox.post_last(MOST), Posted::Sent);
        assert!(receiver.try_iter().eq(0..=MOST));
        assert!(outbox.has_room());
    }

    #[test]
    fn wait_for_room_ends_with_room_or_at_the_limit() {
        let (outbox, receiver) = Outbox::new();
        for n in 0..ROOM {
            assert_eq!(outbox.post(n), Posted::Sent);
        }
        outbox.await_room(LOOK);
        assert!(!outbox.has_room());
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..=ROOM - ROOM_AGAIN {
                    assert!(!outbox.has_room(), "a part of the room is not enough");
                    receiver.recv().expect("a message");
                }
            });
            outbox.await_room(Duration::from_secs(600));
        });
        assert!(outbox.has_room());
    }

    #[test]
    fn without_a_writing_thread_posts_are_lost_without_a_wait() {
        let (outbox, receiver) = Outbox::new();
        for n in 0..ROOM {
            assert_eq!(outbox.post(n), Posted::Sent);
        }
        drop(receiver);
        assert_eq!(outbox.post(ROOM), Posted::Lost);
        outbox.await_room(Duration::from_secs(600));
        assert!(outbox.has_room());
    }
}
