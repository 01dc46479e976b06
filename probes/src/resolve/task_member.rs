//! Watched data of a task, before the address of the task is known.

use std::sync::Arc;

use events::NotStarted;
use manifest::WatchedAccess;

use super::words::words;

/// Watched data of the first thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskMember {
    /// The number of the process.
    pub pid: u32,
    /// The offset in the `struct task_struct`, bytes.
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) access: WatchedAccess,
    pub(super) symbol: Arc<str>,
}

impl TaskMember {
    /// The most words of the data.
    pub(crate) const fn words(&self) -> usize {
        words(self.len)
    }

    /// The reason of a probe whose process has not been started.
    #[must_use]
    pub const fn not_started(&self) -> NotStarted {
        NotStarted { pid: self.pid }
    }
}
