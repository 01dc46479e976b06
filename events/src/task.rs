//! The task of a hit.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A task of the guest.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The thread's number, unique in the guest: what the kernel calls `pid`, and user space the thread's id.
    pub tid: i32,
    /// The process's number: what the kernel calls `tgid`.
    pub pid: i32,
    /// The task's name. Bytes that are no UTF-8 are U+FFFD.
    pub comm: String,
    /// The real user with whose credentials the task acts (`cred->uid`): the number in the initial user namespace. Absent if the kernel
    /// does not say where it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<u32>,
    /// Whether the task is a thread of the kernel. Absent if the kernel does not say where it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kernel_thread: Option<bool>,
    /// The parent. Absent in records, which are written without an exit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<ParentTask>,
    /// The path of the cgroup in the hierarchy of version 2, as in the line `0::` of `/proc/PID/cgroup`. Absent in records, which are written
    /// without an exit; for a path of more than 64 names or 1024 bytes; and without cgroups.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub cgroup: Option<Arc<str>>,
}

/// The parent of a task, as its `/proc/PID/stat` says.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentTask {
    /// The number of the parent's process; 0 for the first tasks.
    pub pid: i32,
    /// The name of the thread that is the parent. Bytes that are no UTF-8 are U+FFFD.
    pub comm: String,
}

/// As in the kernel's own messages: `cat[312]`.
impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]", self.comm, self.tid)
    }
}

impl Task {
    /// What is known beside the numbers and the name: `uid 1000  parent sh[1]  cgroup /a  kernel thread`. Empty if nothing is known.
    #[must_use]
    pub fn details(&self) -> String {
        let uid = self.uid.map(|uid| format!("uid {uid}"));
        let parent = self.parent.as_ref();
        let parent = parent.map(|parent| format!("parent {}[{}]", parent.comm, parent.pid));
        let cgroup = self.cgroup.as_ref().map(|path| format!("cgroup {path}"));
        let is_thread = self.kernel_thread == Some(true);
        let thread = is_thread.then(|| "kernel thread".to_owned());
        let known = [uid, parent, cgroup, thread].into_iter().flatten();
        known.collect::<Vec<_>>().join("  ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_a_task_are_those_that_are_known() {
        let mut task = Task {
            tid: 7,
            pid: 7,
            comm: "sh".to_owned(),
            ..Task::default()
        };
        assert_eq!(task.details(), "");
        let json = serde_json::json!({"tid": 7, "pid": 7, "comm": "sh"});
        assert_eq!(serde_json::to_value(&task).expect("JSON"), json);
        task.uid = Some(1000);
        task.kernel_thread = Some(false);
        task.parent = Some(ParentTask {
            pid: 1,
            comm: "init".to_owned(),
        });
        task.cgroup = Some("/a/b".into());
        assert_eq!(task.details(), "uid 1000  parent init[1]  cgroup /a/b");
        task.kernel_thread = Some(true);
        assert!(task.details().ends_with("  kernel thread"));
        let json = serde_json::to_value(&task).expect("JSON");
        assert_eq!(
            json["parent"],
            serde_json::json!({"pid": 1, "comm": "init"})
        );
        assert_eq!(serde_json::from_value::<Task>(json).expect("read"), task);
    }
}
