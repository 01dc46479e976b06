//! The rights that hyprobe gives up: files, the network, system calls.
//!
//! ```text
//!  main thread   begin ──▶ reads the user's files ──▶ FileRights::restrict ──▶ load_filters, filter_this_thread ──▶ starts threads
//!  each thread                                                                                     enter(kind) ──▶ its work
//! ```
//!
//! * [`begin`]: no new privileges, no core files. In force from the first instruction of `main` on.
//! * [`FileRights`]: Landlock. The process opens only the files that a run still needs.
//! * [`filter_this_thread`]: seccomp for all threads and children. The filter forbids the calls that no part of hyprobe makes.
//! * [`enter`]: seccomp for threads that work for a guest. They make only the calls that the filter of their [`ThreadKind`] lists.
//!
//! Threads and child processes inherit all three. The process has one thread when it gives the rights up: a thread without a
//! filter could write to the memory of the others.

mod begin;
mod files;
mod kind;
mod threads;
mod violation;

pub use begin::{ConfineError, begin};
pub use files::{FileError, FileRights, Landlock, Layer, enter_layer, landlock};
pub use kind::ThreadKind;
pub use threads::{FilterError, enter, filter_this_thread, has_filters, load_filters};
