//! The `int3`s that exit.

use crate::kvm::HostFacts;

/// Which `int3`s exit as [`Trap::Breakpoint`](crate::Trap::Breakpoint), on a KVM that can report an `int3`
/// ([`HostFacts::int3`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int3Exits {
    /// Every `int3`: the plants are `int3`s.
    All,
    /// Only the `int3`s of a vCPU that runs alone. The guest handles all other `int3`s without an exit. But if `int3`s
    /// would not reach the guest correctly ([`HostFacts::int3_reaches_guest`]), every `int3` exits.
    Alone,
}

impl Int3Exits {
    /// The `int3`s that exit on a host with `facts`.
    pub(super) fn on(self, facts: &HostFacts) -> Self {
        match self {
            Self::Alone if facts.int3_reaches_guest() => Self::Alone,
            Self::Alone | Self::All => Self::All,
        }
    }
}
