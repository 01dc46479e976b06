//! The outcomes of a hit.

/// The result of the handlers of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HitDisposition {
    /// The instruction is to be executed.
    GoOn,
    /// The other vCPUs have to be paused first.
    NeedsPause,
    /// The vCPU resumes with the registers that a handler has set.
    Resume,
}

/// The outcome of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HitOutcome {
    /// The vCPU stands behind the instruction, or has a pending exception.
    Resume,
    /// The other vCPUs must be paused first.
    NeedsPause,
    /// No plant is there.
    NotOurs,
}
