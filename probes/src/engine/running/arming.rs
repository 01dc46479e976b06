//! The ways to arm a probe or a return site.

use address::Gva;
use text::Spot;

use crate::engine::watch::table::WatchedBytes;

/// The way to arm a probe now.
pub(crate) enum Arming {
    Plant {
        at: Gva,
        spot: Spot,
        len: usize,
    },
    Debug {
        at: Gva,
        spot: Spot,
    },
    /// The pages of the watched bytes are protected: one piece, or several.
    Watch(Vec<WatchedBytes>),
    /// The probe cannot be armed yet.
    Later(&'static str),
    Refused(String),
}
