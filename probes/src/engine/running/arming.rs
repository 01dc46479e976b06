//! The ways to arm a probe or a return site.

use address::{Gpa, Gva};
use text::Spot;

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
    /// The page of the watched bytes is protected.
    Watch {
        at: Gva,
        gpa: Gpa,
        len: usize,
    },
    /// The probe cannot be armed yet.
    Later(&'static str),
    Refused(String),
}
