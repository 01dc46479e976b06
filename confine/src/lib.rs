//! The rights that hyprobe gives up: files, the network, system calls.
//!
//! ```text
//!  main thread   begin ──▶ reads the user's files ──▶ FileRights::restrict ──▶ load_filters, filter_process ──▶ starts threads
//!  each thread                                                                                     enter(kind) ──▶ its work
//! ```
//!
//! * [`begin()`]: no new privileges, no core files. In force before the command reads a file.
//! * [`FileRights`]: Landlock. The process opens only the files that a run still needs.
//! * [`filter_process`]: seccomp for all threads and children. The filter forbids the calls that no part of hyprobe makes.
//! * [`enter`]: seccomp for threads that work for a guest. They make only the calls that the filter of their [`ThreadKind`] lists.
//!
//! Threads and child processes inherit all three. Landlock confines the calling thread only: the process must have no other thread at
//! that time.

mod begin;
mod files;
mod kind;
mod threads;
mod violation;

pub use begin::{ConfineError, begin};
pub use files::{FileError, FileRights, Landlock, Layer, enter_layer, landlock};
pub use kind::ThreadKind;
pub use threads::{FilterError, enter, filter_process, has_filters, load_filters};
