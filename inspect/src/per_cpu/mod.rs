//! Per-CPU variables.
//!
//! The kernel's image has a section with the initial values. At boot, the kernel makes a copy of the section for each processor, and notes
//! the distance to each copy:
//!
//! ```text
//!  __per_cpu_start ─▶ runqueues …  ◀─ __per_cpu_end        the section: symbols, and offsets in BTF
//!                        │ + __per_cpu_offset[0] ─▶ the variable of processor 0
//!                        └ + __per_cpu_offset[1] ─▶ the variable of processor 1
//! ```
//!
//! [`PerCpuOffsets`] knows the distances, [`PerCpuList`] lists variables. Modules have sections of their own, which are not listed.

mod list;
mod offsets;

pub use list::{PerCpuCopy, PerCpuError, PerCpuList, PerCpuVariable};
pub use offsets::PerCpuOffsets;
pub(crate) use offsets::{TABLE, section};
