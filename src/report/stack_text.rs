//! Stacks in text.

use events::{ProgramFrame, StackFrame, Task, VcpuStack};

use super::printable::printable;

/// A stack in text: a heading and a line for each frame.
#[derive(Debug)]
pub(crate) struct StackText<'s> {
    /// The number of the vCPU.
    pub(crate) vcpu: Option<usize>,
    /// The task.
    pub(crate) task: Option<&'s Task>,
    /// The letter of the task's state.
    pub(crate) state: Option<char>,
    /// Whether the vCPU runs a program.
    pub(crate) user_mode: bool,
    /// The functions, the innermost first.
    pub(crate) frames: &'s [StackFrame],
    /// The reason why the stack ends early.
    pub(crate) incomplete: Option<&'s str>,
    /// The functions of the program behind the kernel's, the innermost first.
    pub(crate) program: &'s [ProgramFrame],
    /// The reason why the program's stack ends early.
    pub(crate) program_incomplete: Option<&'s str>,
}

impl StackText<'_> {
    /// `cpu0  cat[312]`, or `sleep[77]  S`.
    pub(crate) fn heading(&self) -> String {
        let vcpu = self.vcpu.map(|number| format!("cpu{number}"));
        let task = self.task.map(ToString::to_string);
        let state = self.state.map(String::from);
        let mode = self.user_mode.then(|| "in user mode".to_owned());
        let words = [vcpu, task, state, mode].into_iter().flatten();
        printable(&words.collect::<Vec<_>>().join("  ")).into_owned()
    }

    /// The heading and the frames, a line each.
    pub(crate) fn lines(&self) -> String {
        let mut text = format!("{}\n", self.heading());
        for line in self.frames.iter().flat_map(StackFrame::text) {
            text.push_str(&format!("    {}\n", printable(&line)));
        }
        if let Some(why) = self.incomplete {
            text.push_str(&format!("    … {}\n", printable(why)));
        }
        for frame in self.program {
            text.push_str(&format!("    {}\n", printable(&frame.to_string())));
        }
        if let Some(why) = self.program_incomplete {
            text.push_str(&format!("    … {}\n", printable(why)));
        }
        text
    }
}

impl<'s> From<&'s VcpuStack> for StackText<'s> {
    fn from(vcpu: &'s VcpuStack) -> Self {
        Self {
            vcpu: Some(vcpu.vcpu),
            task: vcpu.task.as_ref(),
            state: None,
            user_mode: vcpu.user_mode,
            frames: &vcpu.stack,
            incomplete: vcpu.stack_incomplete.as_deref(),
            program: vcpu.program_stack.as_deref().unwrap_or_default(),
            program_incomplete: vcpu.program_stack_incomplete.as_deref(),
        }
    }
}
