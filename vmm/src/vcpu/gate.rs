//! Who may run: the gate that every vCPU passes before it enters the guest.
//!
//! One party at a time may hold the gate closed: a control thread, or a vCPU that needs the others out of the way.
//!
//! ```text
//!            enter            checkpoint, gate closed
//!   (none) ────────▶ running ────────────────────────▶ parked
//!                     ▲   │ ▲                             │
//!               leave │   │ └────────── gate opens ───────┘
//!   (none) ◀──────────┘   │
//!                         ├──▶ waiting for the gate ──▶ holder ──▶ running
//!                         │    (counts as parked)
//!                         │
//!                         └──▶ waiting for room for events ──▶ gate open ──▶ running
//!                              (counts as parked)
//! ```
//!
//! A vCPU that waits for its own turn counts as parked, so two vCPUs that want the gate at once cannot wait for each
//! other. The holder goes on when every other running vCPU is parked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    /// vCPU threads that exist.
    alive: usize,
    /// Of those, the ones that are out of the guest and stay out while the gate is closed.
    parked: usize,
    /// Whether someone holds the gate closed.
    held: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Mirrors `State::held`, so that an open gate costs a vCPU one load.
    closed: AtomicBool,
}

/// The gate is closed, and every vCPU but the holder's own is parked, while this lives.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is three plain numbers, consistent after every statement: a panicking holder spoils nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A vCPU thread starts, running.
    pub(crate) fn enter(&self) {
        self.lock().alive += 1;
    }

    /// A running vCPU thread ends.
    pub(crate) fn leave(&self) {
        self.lock().alive -= 1;
        self.changed.notify_all();
    }

    /// Whether somebody holds it closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Called by a running vCPU before each entry to the guest; returns once the gate is open. `park` is called if it
    /// is not, before the vCPU counts as parked.
    pub(crate) fn checkpoint(&self, park: impl FnOnce()) {
        if !self.is_closed() {
            return;
        }
        park();
        self.parked(|| ());
    }

    /// Calls `wait` on the thread of a running vCPU, which counts as parked meanwhile; returns once the gate is open.
    pub(crate) fn parked(&self, wait: impl FnOnce()) {
        self.lock().parked += 1;
        self.changed.notify_all();
        let parked = Parked(self);
        wait();
        drop(parked);
    }

    /// Waits until nobody holds the gate closed.
    fn until_open<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.held {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Closes the gate for a thread that runs no vCPU. `kick` makes vCPUs leave the guest.
    pub(crate) fn close(&self, kick: impl FnOnce()) -> Closed<'_> {
        self.close_as(0, kick)
    }

    /// Closes the gate for a running vCPU, which goes on while the others are parked.
    pub(crate) fn close_from_vcpu(&self, kick: impl FnOnce()) -> Closed<'_> {
        self.close_as(1, kick)
    }

    /// `own` is the number of running vCPUs that the caller is: 0 or 1.
    fn close_as(&self, own: usize, kick: impl FnOnce()) -> Closed<'_> {
        let mut state = self.lock();
        state.parked += own;
        self.changed.notify_all();
        state = self.until_open(state);
        state.held = true;
        self.closed.store(true, Ordering::Release);
        state.parked -= own;
        drop(state);
        kick();
        let mut state = self.lock();
        while state.parked + own < state.alive {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Closed(self)
    }
}

/// A vCPU counts as parked while this lives.
struct Parked<'a>(&'a Gate);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        // Runs on only when the gate is open, even in a panic: nobody may run beside a holder.
        let mut state = self.0.until_open(self.0.lock());
        state.parked -= 1;
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.held = false;
        self.0.closed.store(false, Ordering::Release);
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    /// Threads that stand for vCPUs take turns in holding the gate, while a control thread does too; at no time may
    /// anyone run beside a holder.
    #[test]
    fn holders_exclude_everyone() {
        const ROUNDS: usize = 300;
        let gate = Arc::new(Gate::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let vcpus: Vec<_> = (0..3)
            .map(|_| {
                gate.enter();
                let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        match round % 5 {
                            0 => gate.parked(thread::yield_now),
                            _ => gate.checkpoint(|| ()),
                        }
                        inside.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        if round % 7 == 0 {
                            // From here on it counts as parked, until it holds the gate.
                            inside.fetch_sub(1, Ordering::SeqCst);
                            let closed = gate.close_from_vcpu(|| ());
                            let others = inside.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(others, 0, "another vCPU runs beside the holder");
                            drop(closed);
                        }
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                    gate.leave();
                })
            })
            .collect();
        for _ in 0..ROUNDS {
            let closed = gate.close(|| ());
            assert_eq!(
                inside.load(Ordering::SeqCst),
                0,
                "a vCPU runs beside the control thread"
            );
            drop(closed);
        }
        for vcpu in vcpus {
            vcpu.join().expect("no assertion failed on a vCPU thread");
        }
    }

    #[test]
    fn a_vcpu_that_waits_for_room_does_not_hold_up_a_pause() {
        let gate = Gate::default();
        gate.enter();
        let (room, rooms) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let gate = &gate;
            let vcpu = scope.spawn(move || {
                gate.parked(|| rooms.recv().expect("room"));
                gate.leave();
            });
            drop(gate.close(|| ()));
            let closed = gate.close(|| ());
            room.send(()).expect("the vCPU waits");
            thread::sleep(std::time::Duration::from_millis(20));
            assert!(!vcpu.is_finished(), "a vCPU runs beside the holder");
            drop(closed);
        });
    }

    #[test]
    fn a_panic_while_a_vcpu_waits_leaves_the_counts_right() {
        let gate = Gate::default();
        gate.enter();
        let panic = std::panic::AssertUnwindSafe(|| gate.parked(|| panic!("as the test wants")));
        std::panic::catch_unwind(panic).expect_err("it panics");
        let state = gate.lock();
        assert_eq!((state.alive, state.parked), (1, 0));
        drop(state);
        gate.leave();
        drop(gate.close(|| ()));
    }
}
