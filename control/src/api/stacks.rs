//! Stacks of a paused guest.

use events::{ProgramFrame, StackFrame, Task};
use probes::{Stack, event_task};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Pause;

/// The stack of a vCPU, or of a task that is on no vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListedStack {
    /// Number of the vCPU, from 0; absent for a task that is on no vCPU.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub vcpu: Option<usize>,
    /// The task; absent for a vCPU before the kernel's first task, and in the kernel's entry code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task: Option<Task>,
    /// Letter of the task's state, as `ps` in the guest prints it; absent for a vCPU.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    pub state: Option<char>,
    /// Whether the vCPU runs a program: the kernel has no stack there.
    pub user_mode: bool,
    /// The functions, the innermost first; empty in user mode and for a task that has ended.
    pub stack: Vec<StackFrame>,
    /// The reason why the stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stack_incomplete: Option<String>,
    /// The functions of the program, from the call of the kernel on, the innermost first; absent for a thread of the kernel, for a task that has ended, and
    /// where the kernel stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack: Option<Vec<ProgramFrame>>,
    /// The reason why the program's stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack_incomplete: Option<String>,
}

/// Stacks of one moment: first of the vCPUs, then of tasks in the order of their start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stacks {
    /// The stacks.
    pub stacks: Vec<ListedStack>,
    /// Pause of the guest for the read.
    pub pause: Pause,
}

impl From<inspect::stacks::ListedStack> for ListedStack {
    fn from(listed: inspect::stacks::ListedStack) -> Self {
        let stack = Stack::new(listed.stack, listed.program);
        Self {
            vcpu: listed.vcpu,
            task: listed.task.map(event_task),
            state: listed.state,
            user_mode: listed.user_mode,
            stack: stack.frames,
            stack_incomplete: stack.incomplete,
            program_stack: stack.program.frames,
            program_stack_incomplete: stack.program.incomplete,
        }
    }
}
