//! What a client may do to us, at the most. `docs/control.md` lists these.

use std::time::Duration;

/// Connections that are served at once.
pub const CONNECTIONS: usize = 64;
/// Connections beyond those, that are told so.
pub(crate) const TURNED_AWAY: usize = 64;
/// Streams of events among the connections: some are left for everything else.
pub const EVENT_STREAMS: usize = 32;
/// A request's line and headers.
pub(crate) const HEAD_BYTES: usize = 16 << 10;
/// A request's headers must have come by then, and a connection may be idle for so long.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// A request's body.
pub const BODY_BYTES: usize = 1 << 20;
/// A request's body must have come by then.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(10);
/// A client that takes nothing of its answer for so long is cut off. A stream of events may stand for ever.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(10);
/// Probes of one request. A pattern may stand for more.
pub const PROBES_PER_REQUEST: usize = 1000;
/// Probes that answers to changes show, and that a page of a list has if nothing is said.
pub const PROBES_SHOWN: usize = 1000;
/// Probes that a page of a list, or the metrics, have at the most.
pub const PROBES_LISTED: usize = 10_000;
/// Symbols of one answer, and how many if nothing is said.
pub const SYMBOLS: usize = 10_000;
pub(crate) const SYMBOLS_SHOWN: usize = 100;
/// Characters of a pattern for symbols.
pub(crate) const PATTERN_CHARS: usize = 256;
/// Bytes of guest memory that one request reads.
pub const MEMORY_BYTES: u64 = 64 << 10;
/// Bytes of a probe's own name.
pub(crate) const NAME_BYTES: usize = 64;
/// Names that are given.
pub(crate) const NAMES: usize = 10_000;
/// What clients have at the end of a run to take the rest of their answers.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);
