//! Limits of the clients' requests and connections. `docs/control.md` lists them.

use std::time::Duration;

/// Maximum number of connections served at the same time.
pub const CONNECTIONS: usize = 64;
/// Maximum number of further connections at the same time, which get only a refusal.
pub(crate) const TURNED_AWAY: usize = 64;
/// Maximum number of event streams among the connections. The remaining connections are for other requests.
pub const EVENT_STREAMS: usize = 32;
/// Maximum size of a request's line and headers in bytes.
pub(crate) const HEAD_BYTES: usize = 16 << 10;
/// Time limit for a request's headers, and for an idle connection.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// Maximum size of a request's body in bytes.
pub const BODY_BYTES: usize = 1 << 20;
/// Time limit for a request's body.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(10);
/// Time limit for a stalled answer: afterwards the server closes the client's connection. Event streams have no limit.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(10);
/// Maximum number of probe specifications in one request. A pattern may match more probes.
pub const PROBES_PER_REQUEST: usize = 1000;
/// Maximum number of variables that a probe shows.
pub const VARIABLES_PER_PROBE: usize = introspect::Signature::MAX_VARIABLES;
/// Maximum length of the name and of the type of a variable in bytes. The command cuts longer ones.
pub(crate) const VARIABLE_BYTES: usize = 260;
/// Maximum number of probes in the answer to a change, and the default page size of a list.
pub const PROBES_SHOWN: usize = 1000;
/// Maximum page size of a list, and maximum number of probes in the metrics.
pub const PROBES_LISTED: usize = 10_000;
/// Maximum number of symbols in one answer. The default is `SYMBOLS_SHOWN`.
pub const SYMBOLS: usize = 10_000;
pub(crate) const SYMBOLS_SHOWN: usize = 100;
/// Maximum length of a symbol pattern in characters.
pub(crate) const PATTERN_CHARS: usize = 256;
/// Maximum length of an expression and of a type's name in characters.
pub(crate) const EXPRESSION_CHARS: usize = 1024;
/// Maximum number of guest memory bytes in one answer.
pub const MEMORY_BYTES: u64 = 64 << 10;
/// Maximum length of a probe's own name in bytes.
pub(crate) const NAME_BYTES: usize = 64;
/// Maximum number of named probes.
pub(crate) const NAMES: usize = 10_000;
/// Time for clients to take the rest of their answers at the end of a run.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);
