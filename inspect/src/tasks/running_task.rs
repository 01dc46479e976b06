//! A task that a processor runs.

use std::sync::Arc;

/// The task that a processor runs, or that a stack belongs to. A part that was not read, or could not be read, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningTask {
    /// The number of the thread (the kernel's `pid`).
    pub tid: i32,
    /// The number of the process (the kernel's `tgid`).
    pub pid: i32,
    /// The name.
    pub comm: String,
    /// The real user, as a number in the initial user namespace.
    pub uid: Option<u32>,
    /// Whether the task is a thread of the kernel.
    pub kernel_thread: Option<bool>,
    /// The parent.
    pub parent: Option<ParentTask>,
    /// The path of the cgroup in the hierarchy of version 2.
    pub cgroup: Option<Arc<str>>,
}

/// The parent of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentTask {
    /// The number of the parent's process.
    pub pid: i32,
    /// The name of the thread that is the parent.
    pub comm: String,
}
