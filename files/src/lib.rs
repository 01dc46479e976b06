//! Files with names from outside. hyprobe reads kernels, initrds, manifests and cached images, and writes outputs and artifacts.
//!
//! * [`read()`]: a name from outside may lead to a FIFO without a writer, to `/dev/zero`, or to a file larger than the host's memory. The
//!   function takes regular files only, and no more bytes than the caller allows. [`open_regular()`] is for callers that read parts.
//! * [`create()`]: another user of the host may have put a symbolic link, a FIFO or a file at the name of an output. The function
//!   writes through no link of another user, and makes files with mode 0600.
//! * [`Replacement`]: an output whose old contents stay until the new contents are complete.
//! * [`parent()`]: the directory of a file made by the caller, for example a socket.
//! * [`Folder`]: the artifacts of a test. Below the user's folder, no symbolic link is followed.
//!
//! ```text
//! path ── walk: directories, links of root and of the user ──▶ descriptor of the last directory
//!                                                                     │ beneath: openat2(NO_SYMLINKS | BENEATH)
//!                                                                     ▼
//!                                                              the file itself
//! ```
//!
//! Errors do not name the file; callers do.

mod beneath;
mod create;
mod descriptor;
mod error;
mod folder;
mod owner;
mod read;
mod replacement;
mod walk;

pub use create::{Opened, create, open_private};
pub use error::CreateError;
pub use folder::Folder;
pub use owner::Owner;
pub use read::{ReadError, open_regular, read};
pub use replacement::Replacement;
pub use walk::{open_directory, parent};
