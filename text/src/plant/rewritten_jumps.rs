//! The jumps over instructions that handlers have rewritten.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use address::Gpa;

/// The jumps over instructions that handlers have rewritten. The jumps must be removed before the vCPU resumes.
#[derive(Debug, Default)]
pub struct RewrittenJumps {
    jumps: Mutex<BTreeSet<Gpa>>,
    /// Whether `jumps` has a jump: the check at every hit is one load.
    is_any: AtomicBool,
}

impl RewrittenJumps {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Gpa>> {
        self.jumps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds jumps over bytes that a handler rewrites.
    pub(super) fn add(&self, jumps: Vec<Gpa>) {
        self.lock().extend(jumps);
        self.is_any.store(true, Ordering::Release);
    }

    /// Whether handlers have rewritten no instruction under a jump.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.is_any.load(Ordering::Acquire)
    }

    /// Takes the jumps. The other vCPUs are paused.
    pub fn take(&self) -> BTreeSet<Gpa> {
        let mut jumps = self.lock();
        self.is_any.store(false, Ordering::Release);
        std::mem::take(&mut *jumps)
    }
}
