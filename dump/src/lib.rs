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
//! The layout of the file is fixed before the first byte of memory is read, so that a file can be a stream. The crate reads through
//! [`PhysMemory`](introspect::PhysMemory), and does not know whether the guest runs; the caller pauses the guest.

#![forbid(unsafe_code)]

mod core_file;
mod file;
mod kernel_part;
mod notes;
mod pieces;
mod registers;
pub mod sparse;
mod vmcoreinfo;

pub use core_file::{Core, Guest};
pub use file::SparseFile;
pub use kernel_part::{KernelPart, TextMapping};
pub use pieces::{Piece, Pieces};
