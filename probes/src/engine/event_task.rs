//! Tasks in the form of events.
//!
//! `inspect` and `events` do not know each other, and each has a type for a task: `inspect` also answers questions about dumps, without a run and its
//! events, and the serialised form of `events` is documented and versioned. The conversion moves the names, and allocates nothing.

use events::{ParentTask, Task};
use inspect::RunningTask;

/// The task in the form of events.
#[must_use]
pub fn event_task(task: RunningTask) -> Task {
    Task {
        tid: task.tid,
        pid: task.pid,
        comm: task.comm,
        uid: task.uid,
        kernel_thread: task.kernel_thread,
        parent: task.parent.map(|parent| ParentTask {
            pid: parent.pid,
            comm: parent.comm,
        }),
        cgroup: task.cgroup,
    }
}
