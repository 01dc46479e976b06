//! The reasons for missed hits and returns.

/// The reason why an execution is not reported, or a call not followed to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The maximum number of calls (maxactive) was in flight.
    MaxActive,
    /// No plant is possible at the return address.
    ReturnSite,
    /// The call never returned: the stack was used again above the call, or the call's task ended.
    Abandoned,
    /// The function of a program jumped to another function, from which the call returns.
    TailCall,
    /// The function of a program was left in a way that hyprobe has not seen: by a `longjmp`, or by a return from another part of the file.
    LeftUnseen,
    /// The entry handler declined the call.
    Declined,
    /// The probe was disabled or removed while the call was in flight, or its `int3` was removed after a vCPU had executed it.
    Disarmed,
    /// The guest reads the instruction after executing it, and no debug register was free to watch the instruction meanwhile.
    Unwatched,
    /// The ring had no room for a record.
    RingFull,
    /// Watched bytes may have changed unseen: the hardware executed any number of instructions while the guest could write to the page,
    /// or the write was merged with plants.
    Unprotected,
    /// The filter or the aggregate needs a number of the task, which is unknown at the instruction.
    UnknownTask,
    /// The filter or the aggregate needs a value of a mark that the mark does not have, or that is not understood or not in memory.
    UnknownValue,
}

impl Missed {
    pub(super) const ALL: [(Self, &'static str); 12] = [
        (Self::MaxActive, "maxactive"),
        (Self::ReturnSite, "return-site"),
        (Self::Abandoned, "abandoned"),
        (Self::TailCall, "tail-call"),
        (Self::LeftUnseen, "left-unseen"),
        (Self::Declined, "declined"),
        (Self::Disarmed, "disarmed"),
        (Self::Unwatched, "unwatched"),
        (Self::RingFull, "ring-full"),
        (Self::Unprotected, "unprotected"),
        (Self::UnknownTask, "unknown-task"),
        (Self::UnknownValue, "unknown-value"),
    ];
}
