//! A guest's memory and registers as an ELF core file, for crash, drgn, gdb and makedumpfile.
//!
//! ```text
//!  KernelPart::find ── kernel's text, direct map, VMCOREINFO ──┐
//!  vCPUs' registers ───────────────────────────────────────────┼──▶ Core: ELF header, program headers, notes
//!  ranges of RAM ──────────────────────────────────────────────┘      │
//!  memory ───────────────────────────────────────────────▶ Pieces: bytes, runs of zeros
//!                                                                     │
//!                                    as they are, or frames (sparse) ─┴─▶ SparseFile: zeros become holes
//! ```
//!
//! [`DumpedKernel`] is the way back: the kernel in such a file, for the questions that `inspect` answers.
//!
//! The layout of the file is fixed before the first byte of memory is read, so that a file can be a stream. The crate reads through
//! [`PhysMemory`](introspect::PhysMemory), and does not know whether the guest runs; the caller pauses the guest.

#![forbid(unsafe_code)]

mod core_error;
mod core_file;
mod core_headers;
mod core_memory;
mod dumped_kernel;
mod dumped_stacks;
mod file;
mod kernel_part;
mod notes;
mod page_cache;
mod pieces;
mod registers;
pub mod sparse;
#[cfg(test)]
mod synthetic;
mod vmcoreinfo;

pub use core_error::{DumpReadError, OpenDumpError};
pub use core_file::{Core, Guest};
pub use dumped_kernel::DumpedKernel;
pub use dumped_stacks::DumpedStacksError;
pub use file::SparseFile;
pub use kernel_part::{KernelPart, TextMapping};
pub use pieces::{Piece, Pieces};
