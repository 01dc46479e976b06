//! Sandbox: hyprobe gives up rights to files, the network and system calls.
//!
//! ```text
//!  main thread   begin ──▶ reads the user's files ──▶ FileRights::rules ──▶ Identity::assume ──▶ Rules::restrict
//!                      ──▶ load_filters, filter_process ──▶ starts threads
//!  each thread                                             enter(kind) ──▶ its work
//! ```
//!
//! * [`begin()`]: no new privileges, no core files. In force before the command reads a file.
//! * [`FileRights`]: Landlock. The process opens only the files that a run still needs.
//! * [`Identity`]: a process of root becomes another user, if root wishes so.
//! * [`filter_process`]: seccomp for all threads and children. The filter forbids the calls that no part of hyprobe makes.
//! * [`enter`]: seccomp for threads working for a guest, which make only the calls in the filter of their [`ThreadKind`].
//!
//! Threads and child processes inherit all of them. Landlock rules and the user are the calling thread's: the process must have no
//! other thread at the time of the change ([`has_one_thread`]).

mod begin;
mod files;
mod identity;
mod inherited;
mod kind;
mod threads;
mod violation;

pub use begin::{ConfineError, begin, has_one_thread};
pub use files::{FileError, FileRights, Landlock, Layer, Rules, enter_layer, landlock};
pub use identity::{Identity, IdentityError, Root};
pub use inherited::Inherited;
pub use kind::ThreadKind;
pub use threads::{FilterError, enter, filter_process, has_filters, load_filters};
