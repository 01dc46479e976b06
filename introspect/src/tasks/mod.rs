//! Which task a processor runs, and where the kernel has what is known of a task.
//!
//! ```text
//!  gs ─▶ current ─▶ task_struct ─┬─ pid, tgid, comm, flags
//!                                ├─▶ cred: uid
//!                                ├─▶ real_parent: a task_struct
//!                                └─▶ css_set ─▶ cgroup ─▶ kernfs_node ─▶ … ─▶ the root
//! ```
//!
//! The layouts come from the kernel's own types. A reader gives the bytes: guest memory is hostile, so each walk has a bound.

mod cgroup;
mod layout;

pub use cgroup::{CgroupLayout, ReadAt};
pub use layout::{MAX_COMM_BYTES, TaskLayout, UserLayout};
