//! Where the running kernel is, virtually and physically.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use address::Gva;
use arc_swap::ArcSwapOption;

use crate::resolve::{MemoryOwner, Place};

/// The location of the running kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// Run-time less link-time address.
    pub(crate) slide: i64,
    /// For a kernel that has moved: guest-physical less link-time address. `None` if the kernel lies at the physical addresses of
    /// its file.
    pub(crate) physical: Option<u64>,
}

impl Located {
    /// The link-time address of a run-time one.
    pub(crate) fn linked(self, running: Gva) -> Gva {
        Gva(running.0.wrapping_sub(self.slide.cast_unsigned()))
    }

    /// The run-time address of `at`, an address in the terms of `place`.
    pub(crate) fn running_at(self, place: &Place, at: Gva) -> Gva {
        match place.owner {
            MemoryOwner::Module(_) | MemoryOwner::Task(_) | MemoryOwner::Nobody => at,
            MemoryOwner::Kernel | MemoryOwner::Processors => {
                at.wrapping_add(self.slide.cast_unsigned())
            }
        }
    }
}

/// The location of the kernel, once known; cleared when another kernel takes over.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    located: ArcSwapOption<Located>,
    /// Whether a failed location has been noted. A guest may write any number of useless addresses: one note is enough.
    is_doubt_noted: AtomicBool,
}

impl Whereabouts {
    pub(crate) fn get(&self) -> Option<Located> {
        self.located.load().as_deref().copied()
    }

    pub(crate) fn set(&self, located: Option<Located>) {
        self.located.store(located.map(Arc::new));
    }

    pub(crate) fn is_first_doubt(&self) -> bool {
        !self.is_doubt_noted.swap(true, Ordering::Relaxed)
    }
}

/// Whether the kernel has reached a point that it reaches once.
#[derive(Debug, Default)]
pub(crate) struct Reached(AtomicBool);

impl Reached {
    pub(crate) fn set(&self, reached: bool) {
        self.0.store(reached, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
