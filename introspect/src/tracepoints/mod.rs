//! The tracepoints of the kernel and of its modules: where they are, and their arguments.
//!
//! `table` reads the kernel's tables, from its file, and `module` those of a module, from the guest's memory; `labels` and `layout` are the parts
//! that both have, and `calls` tells the places where a tracepoint is passed from those that ask whether it is on. While the guest has
//! a tracepoint off, nothing computes the tracepoint's arguments: `block` interprets the code that would, on a copy of the registers.

mod block;
mod calls;
mod field_type;
mod interpreter;
mod labels;
mod layout;
mod lines;
mod module;
mod record_layout;
mod record_values;
mod record_writer;
mod scratch;
#[cfg(test)]
mod synthetic;
mod table;

pub use block::{ArgumentBlock, NoArguments};
pub use calls::{ReadCode, TracepointCall};
pub use interpreter::{Snapshot, Uninterpreted};
pub use labels::TracepointSite;
pub use layout::TracepointVariable;
pub use module::{DefinedTracepoint, ModuleTables, ModuleTracepoints, TableAt};
pub use record_layout::{NoLayout, RecordField, RecordLayout};
pub use record_values::{FieldValue, Integer};
pub use record_writer::{NoRecord, RecordWriter};
pub use table::{Tracepoint, Tracepoints};
