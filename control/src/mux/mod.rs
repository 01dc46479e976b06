//! Many connections through one stream of bytes: the virtio-serial port of a nested run.
//!
//! ```text
//!  this host                                          outer Linux
//!  client ─┐                                        ┌─ socket pair ─┐
//!  client ─┼─ Outer ═══ frames through one port ═══ Inner           ├─ Server
//!  client ─┘                                        └─ socket pair ─┘
//! ```
//!
//! Each connection is a *channel*. Of each channel, either side may have sent at most `WINDOW_BYTES` that the other side has not passed on
//! yet. Therefore a client that does not read delays no other client, and neither side buffers more than `WINDOW_BYTES` per channel. A
//! violation of the protocol ends the link with all channels.

mod ends;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod link;

pub use ends::{Inner, Outer};
