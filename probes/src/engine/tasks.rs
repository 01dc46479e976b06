//! The tasks of the guest: which one a vCPU runs, and where detours find it.
//!
//! Exits read the task through the guest's page tables. Detours follow the kernel's pointer to the task (`detour/src/code/record.rs`), so
//! they do so only after the kernel's first task has been found there.

use std::sync::Arc;

use address::Gva;
use detour::{NAME_BYTES, RecordedTask, TaskFields};
use events::Task;
use inspect::stacks::RunningTask;
use introspect::PagingState;
use text::{GuestError, SystemState, Vcpu};

use crate::engine::running::Running;
use crate::engine::running::located::Reached;

/// The beginning of the name of the boot processor's first task.
const FIRST_TASK: &str = "swapper";

/// Reads tasks in guest memory.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) running: Arc<Running>,
    /// The kernel's first task is where the types say.
    pub(crate) found: Reached,
}

impl Tasks {
    /// The task on the vCPU, at the instruction `ip`.
    ///
    /// # Errors
    ///
    /// If KVM refuses the request for the vCPU's state.
    pub(crate) fn on(&self, vcpu: &mut dyn Vcpu, ip: Gva) -> Result<Option<Task>, GuestError> {
        if self.running.kernel.tasks().is_none() {
            return Ok(None);
        }
        Ok(self.at(&vcpu.system_state()?, ip))
    }

    /// The task of a vCPU in `state`, at the instruction `ip`.
    pub(crate) fn at(&self, state: &SystemState, ip: Gva) -> Option<Task> {
        let located = self.running.located.get();
        let linked = located.map_or(ip, |located| located.linked(ip));
        // In entry code, `gs` may still be the program's, which can forge a task.
        if self.running.kernel.is_entry(linked)
            || (self.running.boot_patched.get() && !self.found.get())
        {
            return None;
        }
        self.read(&state.paging, state.system.segments.gs.base)
    }

    /// The task of a processor with the per-CPU area at `gs`.
    fn read(&self, paging: &PagingState, gs: u64) -> Option<Task> {
        let layout = self.running.kernel.tasks()?;
        let slide = self.running.slide().unwrap_or(0);
        // No plant is in a page table or in a task. Every event pays for these reads, and memory without plants is read much faster.
        let memory = &*self.running.memory;
        RunningTask::read(memory, paging, layout, slide, gs).map(event_task)
    }

    /// Looks for the kernel's first task on the vCPU. Until it is found, records hold no task.
    ///
    /// # Errors
    ///
    /// If KVM refuses the request for the vCPU's state.
    pub(crate) fn look_for_first(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let is_first = |task: Task| task.comm.starts_with(FIRST_TASK) && task.tid == 0;
        let state = vcpu.system_state()?;
        let found = self.read(&state.paging, state.system.segments.gs.base);
        self.found.set(found.is_some_and(is_first));
        Ok(())
    }

    /// What a record holds of a task; `None` before the first is found, and for a kernel with another layout than records have room for.
    pub(crate) fn fields(&self) -> Option<TaskFields> {
        let layout = self.running.kernel.tasks().filter(|_| self.found.get())?;
        let fits = layout.comm_bytes == NAME_BYTES;
        Some(TaskFields {
            numbers: i32::try_from(layout.tid).ok().filter(|_| fits)?,
            comm: i32::try_from(layout.comm).ok()?,
        })
    }
}

/// The task in the form of events.
#[must_use]
pub fn event_task(task: RunningTask) -> Task {
    Task {
        tid: task.tid,
        pid: task.pid,
        comm: task.comm,
    }
}

/// The task of a record.
pub(crate) fn recorded(task: RecordedTask) -> Task {
    Task {
        tid: task.tid.cast_signed(),
        pid: task.pid.cast_signed(),
        comm: until_zero(&task.comm),
    }
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}
