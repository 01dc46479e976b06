//! The wish to end a run, from wherever it comes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::panics::Since;

/// Why a run is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// ctrl-C, SIGTERM or SIGHUP.
    Signal,
    /// Nobody reads the events any more: the pipe's other end is closed.
    OutputClosed,
    /// An expectation is broken that says so.
    Broken,
    /// A thread of this process has panicked.
    Panicked,
}

/// A wish to end the run that any thread can express and any thread can wait for. Clones are the same wish. A panic of any thread
/// is such a wish, too.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal {
    shared: Arc<Shared>,
    began: Since,
}

impl Default for StopSignal {
    fn default() -> Self {
        Self {
            shared: Arc::default(),
            began: Since::now(),
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    reason: Mutex<Option<StopReason>>,
    requested: Condvar,
}

impl StopSignal {
    /// Asks for the end. The first reason counts.
    pub(crate) fn request(&self, reason: StopReason) {
        self.lock().get_or_insert(reason);
        self.shared.requested.notify_all();
    }

    /// Whether the end was asked for, and why.
    pub(crate) fn requested(&self) -> Option<StopReason> {
        self.asked().or_else(|| self.panicked())
    }

    /// Why somebody asked for the end. A panic asks for nothing.
    pub(crate) fn asked(&self) -> Option<StopReason> {
        *self.lock()
    }

    fn panicked(&self) -> Option<StopReason> {
        self.began.first().map(|_| StopReason::Panicked)
    }

    /// Waits until the end is asked for, at most for `limit`. A panic meanwhile is seen at the limit.
    pub(crate) fn wait(&self, limit: Duration) -> Option<StopReason> {
        let (reason, _) = self
            .shared
            .requested
            .wait_timeout_while(self.lock(), limit, |reason| reason.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        let reason = *reason;
        reason.or_else(|| self.panicked())
    }

    fn lock(&self) -> MutexGuard<'_, Option<StopReason>> {
        // The value is valid after every statement.
        self.shared
            .reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts_and_wakes_who_waits() {
        let stop = StopSignal::default();
        assert_eq!(stop.wait(Duration::from_millis(1)), None);
        let waiting = std::thread::spawn({
            let stop = stop.clone();
            move || stop.wait(Duration::from_secs(60))
        });
        stop.request(StopReason::OutputClosed);
        stop.request(StopReason::Signal);
        assert_eq!(
            waiting.join().expect("thread"),
            Some(StopReason::OutputClosed)
        );
        assert_eq!(stop.requested(), Some(StopReason::OutputClosed));
    }
}
