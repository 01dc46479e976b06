//! The tasks, as the kernel shows them in `/proc`.
//!
//! The kernel links the first thread of each process into a list that begins at `init_task`, and the threads of a process into a list
//! in its `signal_struct`. [`TaskList`] finds the places of the members once (`layout`), and then follows the lists (`walk`). A task
//! gets its name (`name`), its state (`state`), its cgroup (`cgroup`) and its command line (`command_line`) from there. The stack of a task
//! that is on no processor starts at the registers that the kernel saved (`switched_out`). [`FirstThreads`] knows processes by their number. [`TaskReader`] reads a single task at its address, as at a
//! hit, with few reads.

mod cgroup;
mod cgroup_paths;
mod command_line;
mod error;
mod first_thread;
mod layout;
mod name;
mod running_task;
mod state;
mod switched_out;
mod task_reader;
#[cfg(test)]
mod tests;
mod walk;

pub use cgroup_paths::CgroupPaths;
pub use error::TaskListError;
pub use first_thread::FirstThreads;
pub use running_task::{ParentTask, RunningTask};
pub(crate) use switched_out::SwitchFrames;
pub use task_reader::{TaskNumbers, TaskReader};
pub(crate) use walk::Thread;
pub use walk::{Task, TaskList};
