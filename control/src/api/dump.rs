//! Dumps of the guest.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest pause of a dump, by default.
pub const DUMP_PAUSE: Duration = Duration::from_secs(120);
/// The limits that a client may give the pause of a dump, in seconds.
pub const DUMP_PAUSE_SECONDS: RangeInclusive<u64> = 1..=3600;
