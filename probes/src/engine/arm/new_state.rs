//! The state of a probe after a change.

use address::Gva;

use crate::engine::watch::table::WatchedBytes;

/// The next state of a probe.
pub(crate) enum NewState {
    /// The probe is at `ip`; the plant or the debug register is at `at`.
    Armed {
        ip: Gva,
        at: Gva,
    },
    /// The probe watches the bytes of the pieces.
    Watching(Vec<WatchedBytes>),
    /// The probe has no address, is gone, was refused, or is a kernel event probe that is not needed now.
    AsItIs,
    Pending(String),
    Disabled,
    /// The probe's code has been freed.
    Gone,
    Refused(String),
}
