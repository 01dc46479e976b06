//! The exits that no probe counts: `int3`s of the guest, and guest writes to read-only pages.

use std::sync::atomic::{AtomicU64, Ordering};

/// The exits that no probe counts. Any vCPU counts them.
#[derive(Debug, Default)]
pub struct UnprobedExits {
    int3s: AtomicU64,
    guest_writes: AtomicU64,
}

impl UnprobedExits {
    /// Counts an `int3` that is returned to the guest.
    pub(crate) fn count_int3(&self) {
        self.int3s.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a guest write to a read-only page.
    pub(crate) fn count_guest_write(&self) {
        self.guest_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of `int3`s that exit and are returned to the guest, if plants are port writes: `int3`s of the guest under
    /// a plant, and `int3`s of a vCPU that runs alone. If KVM cannot leave `int3`s to the guest
    /// ([`HostFacts::int3_reaches_guest`](vmm::HostFacts::int3_reaches_guest)), each `int3` counts. No probe counts these
    /// exits.
    #[must_use]
    pub fn int3s(&self) -> u64 {
        self.int3s.load(Ordering::Relaxed)
    }

    /// The number of exits for guest writes to read-only pages: pages with plants, from `rest_init` on the whole text, and the
    /// detour region. A kernel that patches itself while booting causes most of them. No probe counts these exits.
    #[must_use]
    pub fn guest_writes(&self) -> u64 {
        self.guest_writes.load(Ordering::Relaxed)
    }
}
