//! Tasks of the guest's kernel.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Pause;

/// A task: a process, or a thread of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListedTask {
    /// Number of the process (the kernel's `tgid`).
    pub pid: i32,
    /// Number of the thread (the kernel's `pid`).
    pub tid: i32,
    /// Number of the parent's process; 0 for the first process and for `kthreadd`.
    pub ppid: i32,
    /// Real user.
    pub uid: u32,
    /// Effective user.
    pub euid: u32,
    /// Letter of the state, as `ps` in the guest prints it: `R`, `S`, `D`, `T`, `t`, `X`, `Z`, `P`, `I`.
    #[schema(value_type = String)]
    pub state: char,
    /// Name, as in the guest's `/proc/PID/comm`.
    pub comm: String,
    /// Whether the task is a thread of the kernel.
    pub kernel_thread: bool,
    /// Path of the cgroup, as in the line `0::` of the guest's `/proc/PID/cgroup`; absent without cgroups.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cgroup: Option<String>,
    /// Words of the command line, of the first 4096 bytes; empty for a thread of the kernel, and if the page is not in memory.
    pub cmdline: Vec<String>,
}

/// Tasks in the order of their start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tasks {
    /// The tasks.
    pub tasks: Vec<ListedTask>,
    /// Pause of the guest for the read.
    pub pause: Pause,
}

impl From<inspect::Task> for ListedTask {
    fn from(task: inspect::Task) -> Self {
        Self {
            pid: task.pid,
            tid: task.tid,
            ppid: task.parent,
            uid: task.uid,
            euid: task.euid,
            state: task.state,
            comm: task.comm,
            kernel_thread: task.kernel_thread,
            cgroup: task.cgroup,
            cmdline: task.command_line,
        }
    }
}
