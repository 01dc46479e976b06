//! Original bytes under loose stops: stops on pages without a copy of their original bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use address::Gpa;
use arc_swap::ArcSwap;

/// Original bytes under loose stops. There are few, for a short time; every read of memory looks them up.
#[derive(Debug, Default)]
pub(super) struct LooseStops {
    bytes: ArcSwap<Vec<(Gpa, u8)>>,
    /// At least the number of loose stops. Most of the time the number is 0, and a read needs only one load.
    most: AtomicUsize,
    /// Locked during a change of the stops.
    change: Mutex<()>,
}

impl LooseStops {
    pub(super) fn update(&self, change: impl FnOnce(&mut Vec<(Gpa, u8)>)) {
        let _lock = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::clone(&self.bytes.load());
        change(&mut bytes);
        let len = bytes.len();
        self.most.fetch_max(len, Ordering::AcqRel);
        self.bytes.store(Arc::new(bytes));
        self.most.store(len, Ordering::Release);
    }

    /// The original byte under a stop at `gpa`, if any.
    pub(super) fn own(&self, gpa: Gpa) -> Option<u8> {
        let bytes = self.bytes.load();
        let found = bytes.iter().find(|(at, _)| *at == gpa);
        found.map(|(_, own)| *own)
    }

    /// Replaces the stops in `buf`, which was read from `gpa` on, by the original bytes. If `buf` does not have the plant's byte there, the
    /// guest has written another value.
    pub(super) fn uncover(&self, gpa: Gpa, buf: &mut [u8], plant: u8) {
        if self.most.load(Ordering::Acquire) == 0 {
            return;
        }
        for &(at, own) in self.bytes.load().iter() {
            let index = at.offset_from(gpa).and_then(|i| usize::try_from(i).ok());
            if let Some(byte) = index.and_then(|i| buf.get_mut(i))
                && *byte == plant
            {
                *byte = own;
            }
        }
    }
}
