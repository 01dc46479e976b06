//! How many boots go on at once.

use std::sync::{Condvar, Mutex, PoisonError};

/// Each boot keeps two threads busy.
const BOOTS_AT_ONCE: usize = 2;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// A turn to boot, held until the drop. For test runners that run all tests in a single process; a runner with a process per test has a
/// configuration of its own (`.config/nextest.toml`).
#[derive(Debug)]
pub(crate) struct Turn(());

impl Turn {
    pub(crate) fn take() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = GIVEN_BACK
            .wait_while(taken, |taken| *taken >= BOOTS_AT_ONCE)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GIVEN_BACK.notify_one();
    }
}
