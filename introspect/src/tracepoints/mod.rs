//! The kernel's tracepoints: where they are, and their arguments.
//!
//! `table` reads the kernel's tables, from its file. While the guest has a tracepoint off, nothing computes the tracepoint's arguments: `block`
//! interprets the code that would, on a copy of the registers.

mod block;
mod table;

pub use block::{ArgumentBlock, NoArguments, Snapshot};
pub use table::{Tracepoint, TracepointSite, Tracepoints};
