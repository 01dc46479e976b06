//! The request to end a run, from any source.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::panics::Since;

/// Why a run is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// ctrl-C, SIGTERM or SIGHUP.
    Signal,
    /// The reader of the events has closed the pipe's other end.
    OutputClosed,
    /// An expectation with `stop = true` is broken.
    Broken,
    /// A thread of this process has panicked.
    Panicked,
}

/// A request to end the run: any thread can make the request, and any thread can wait for the request. Clones share the request. A panic
/// of any thread counts as a request, too.
#[derive(Clone, Debug)]
pub struct StopSignal {
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
    pub fn request(&self, reason: StopReason) {
        self.lock().get_or_insert(reason);
        self.shared.requested.notify_all();
    }

    /// Whether the end was asked for, and why.
    pub fn requested(&self) -> Option<StopReason> {
        self.asked().or_else(|| self.panicked())
    }

    /// The reason of the first explicit request, if any. A panic is no explicit request.
    pub fn asked(&self) -> Option<StopReason> {
        *self.lock()
    }

    fn panicked(&self) -> Option<StopReason> {
        self.began.first().map(|_| StopReason::Panicked)
    }

    /// Waits for a request, at most for `limit`. A panic meanwhile is seen at the limit.
    pub fn wait(&self, limit: Duration) -> Option<StopReason> {
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
    fn first_reason_counts_and_wakes_the_waiting_thread() {
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
