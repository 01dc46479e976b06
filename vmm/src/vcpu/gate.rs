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
//! The holder continues when every other running vCPU is parked. The next holder waits until the vCPUs that were parked have passed the gate.
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
    /// Parked threads that wait for the gate to open.
    waiting: usize,
    /// Threads of these that have not passed the gate since it opened. The next holder waits for them: a vCPU that closes the gate again and
    /// again must not keep the others out of the guest.
    passing: usize,
    /// The number of openings.
    openings: u64,
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
        // The state is plain values, consistent after every statement: a panicking holder spoils nothing.
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
        let mut state = self.lock();
        state.parked += 1;
        self.changed.notify_all();
        self.pass(state);
    }

    /// Calls `wait` on the thread of a running vCPU, and returns once the gate is open. The vCPU counts as parked meanwhile.
    pub(crate) fn parked(&self, wait: impl FnOnce()) {
        self.lock().parked += 1;
        self.changed.notify_all();
        let parked = Parked(self);
        wait();
        drop(parked);
    }

    /// Waits while `must_wait`.
    fn wait_while<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        must_wait: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        while must_wait(&state) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Waits until the gate is open, on the thread of a parked vCPU, which then is parked no longer.
    fn pass<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        if state.held {
            let openings = state.openings;
            state.waiting += 1;
            state = self.wait_while(state, |state| state.openings == openings);
            state.waiting -= 1;
            state.passing -= 1;
            if state.passing == 0 {
                self.changed.notify_all();
            }
        }
        state.parked -= 1;
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
        state = self.wait_while(state, |state| state.held || state.passing > 0);
        state.held = true;
        self.closed.store(true, Ordering::Release);
        state.parked -= own;
        drop(state);
        kick();
        drop(self.wait_while(self.lock(), |state| state.parked + own < state.alive));
        Closed(self)
    }
}

/// Counts a vCPU as parked while the value lives.
struct Parked<'a>(&'a Gate);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        // Continues only when the gate is open, even in a panic: no vCPU may run beside a holder.
        self.0.pass(self.0.lock());
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.held = false;
        state.openings += 1;
        state.passing = state.waiting;
        self.0.closed.store(false, Ordering::Release);
        drop(state);
        self.0.changed.notify_all();
    }
}
