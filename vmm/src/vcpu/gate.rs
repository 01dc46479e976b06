//! The gate that every vCPU passes before entering the guest.
//!
//! A single holder at a time keeps the gate closed: a control thread, or a vCPU that needs the other vCPUs paused.
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
//! A vCPU that waits for the gate counts as parked, so two vCPUs that want the gate at once cannot wait for each other.
//! The holder continues when every other running vCPU is parked.
//!
//! `tests/gate.rs` executes the gate with loom's locks, in every order of a few threads' steps.

use std::sync::PoisonError;

use super::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};

#[derive(Debug, Default)]
pub(super) struct State {
    /// vCPU threads that exist.
    pub(super) alive: usize,
    /// vCPU threads that are out of the guest and stay out while the gate is closed.
    pub(super) parked: usize,
    /// Whether a holder keeps the gate closed.
    held: bool,
}

/// The gate: pauses the vCPU threads for a holder.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Mirrors `State::held`: an open gate costs a vCPU a single load.
    closed: AtomicBool,
}

/// The closed gate. While the value lives, every vCPU except the holder is parked.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Gate);

// loom's locks have no default.
impl Default for Gate {
    fn default() -> Self {
        Self {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
        }
    }
}

impl Gate {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The state is three plain values, consistent after every statement: a panicking holder spoils nothing.
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

    /// Whether the gate is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns once the gate is open. A running vCPU calls `checkpoint` before each entry to the guest. If the gate is
    /// closed, `checkpoint` calls `park` before the vCPU counts as parked.
    pub(crate) fn checkpoint(&self, park: impl FnOnce()) {
        if !self.is_closed() {
            return;
        }
        park();
        self.parked(|| ());
    }

    /// Calls `wait` on the thread of a running vCPU, and returns once the gate is open. The vCPU counts as parked meanwhile.
    pub(crate) fn parked(&self, wait: impl FnOnce()) {
        self.lock().parked += 1;
        self.changed.notify_all();
        let parked = Parked(self);
        wait();
        drop(parked);
    }

    /// Waits until the gate is open.
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

    /// Closes the gate for a running vCPU. The vCPU continues while the others are parked.
    pub(crate) fn close_from_vcpu(&self, kick: impl FnOnce()) -> Closed<'_> {
        self.close_as(1, kick)
    }

    /// Closes the gate. `own` is 1 if the caller is a running vCPU, else 0.
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

/// Counts a vCPU as parked while the value lives.
struct Parked<'a>(&'a Gate);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        // Continues only when the gate is open, even in a panic: no vCPU may run beside a holder.
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
