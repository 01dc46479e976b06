//! The layout of the ring, for the tests of the engine.

use crate::ring;

/// The offset of the number of taken slots.
pub const RING_HEAD: u64 = ring::HEAD;
/// The offset of the number of slots that have been taken out.
pub const RING_TAIL: u64 = ring::TAIL;
/// The offset of the first slot.
pub const RING_FIRST: u64 = ring::FIRST;
/// The maximum number of slots that are taken and not taken out.
pub const RING_LIMIT: u64 = ring::LIMIT;
