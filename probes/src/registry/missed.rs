//! Why something is not told that happened.

/// Why an execution was not told, or a call not followed to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// As many calls as maxactive were in flight.
    MaxActive,
    /// Nothing can be planted where it returns to.
    ReturnSite,
    /// It never returned: its stack was used again above it, or its task ended.
    Abandoned,
    /// The entry handler declined it.
    Declined,
    /// The probe was disabled or removed while it was in flight, or its `int3` went when a vCPU had executed it.
    Disarmed,
    /// The guest reads the instruction when it has executed it, and no debug register was free to watch it meanwhile.
    Unwatched,
    /// There was no room for a record.
    RingFull,
}

impl Missed {
    pub(super) const ALL: [(Self, &'static str); 7] = [
        (Self::MaxActive, "maxactive"),
        (Self::ReturnSite, "return-site"),
        (Self::Abandoned, "abandoned"),
        (Self::Declined, "declined"),
        (Self::Disarmed, "disarmed"),
        (Self::Unwatched, "unwatched"),
        (Self::RingFull, "ring-full"),
    ];
}
