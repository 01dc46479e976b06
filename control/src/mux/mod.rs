//! Many connections through one stream of bytes: the virtio-serial port of a nested run.
//!
//! ```text
//!  this host                                          outer Linux
//!  client ─┐                                        ┌─ socket pair ─┐
//!  client ─┼─ Outer ═══ frames through one port ═══ Inner           ├─ Server
//!  client ─┘                                        └─ socket pair ─┘
//! ```
//!
//! Each connection is a *channel*. Either side may send at most `WINDOW_BYTES` of one that the
//! other side has not passed on, so a client that does not read holds up nobody else, and neither side keeps more than
//! that of each. What breaks the rules ends the link, and with it every channel.

mod ends;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod link;

pub use ends::{Inner, Outer};
