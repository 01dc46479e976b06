//! The tracepoints of the kernel: where they are, and their arguments.
//!
//! `table` reads the kernel's tables, from its file; `labels` and `layout` are its parts, and `calls` tells the places where a tracepoint is passed from those that ask whether it is on. While the guest has
//! a tracepoint off, nothing computes the tracepoint's arguments: `block` interprets the code that would, on a copy of the registers.

mod block;
mod calls;
mod labels;
mod layout;
mod table;

pub use block::{ArgumentBlock, NoArguments, Snapshot};
pub use calls::{ReadCode, TracepointCall};
pub use labels::TracepointSite;
pub use layout::TracepointVariable;
pub use table::{Tracepoint, Tracepoints};
