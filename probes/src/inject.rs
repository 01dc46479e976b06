//! The counts of calls with injected faults.

use std::sync::atomic::{AtomicU64, Ordering};

use manifest::{Due, Injection};

/// An injection, with the count of calls.
#[derive(Debug)]
pub(crate) struct Injector {
    pub(crate) injection: Injection,
    calls: AtomicU64,
}

impl From<Injection> for Injector {
    fn from(injection: Injection) -> Self {
        Self {
            injection,
            calls: AtomicU64::new(0),
        }
    }
}

impl Injector {
    /// Counts a call. Returns the call's number if the call must not run.
    pub(crate) fn count(&self) -> Option<u64> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let due = match self.injection.due {
            Due::OnHit(wanted) => call == wanted,
            Due::Every(each) => call.checked_rem(each) == Some(0),
        };
        due.then_some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(due: Due) -> Vec<u64> {
        let injector = Injector::from(Injection {
            at: "kprobe:f".parse().expect("a probe"),
            due,
            value: 0,
            comm: None,
        });
        (0..9).filter_map(|_| injector.count()).collect()
    }

    #[test]
    fn one_call_or_each_of_so_many() {
        assert_eq!(due(Due::OnHit(4)), [4]);
        assert_eq!(due(Due::Every(3)), [3, 6, 9]);
        assert_eq!(due(Due::Every(1)).len(), 9);
        assert!(due(Due::Every(0)).is_empty());
    }
}
