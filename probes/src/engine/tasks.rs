//! The tasks of the guest: which one a vCPU runs, and where detours find it.
//!
//! Exits read the task through the guest's page tables. Detours follow the kernel's pointer to the task (`detour/src/code/record.rs`), so
//! they do so only after the kernel's first task has been found there.

use std::sync::Arc;

use address::Gva;
use detour::{NAME_BYTES, RecordedTask, TaskFields, UserFields};
use events::Task;
use inspect::{CgroupPaths, RunningTask, TaskReader, until_zero};
use introspect::btf::Slot;
use introspect::{PagingState, TaskLayout, Walks};
use manifest::program::TaskNumber;
use text::{GuestError, GuestMemory, SystemState, Vcpu};

use crate::engine::event_task::event_task;
use crate::engine::running::Running;
use crate::engine::running::located::Reached;
use crate::hit_state::HitState;

/// The beginning of the name of the boot processor's first task.
const FIRST_TASK: &str = "swapper";

/// Reads tasks in guest memory.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) running: Arc<Running>,
    /// The kernel's first task is where the types say.
    pub(crate) found: Reached,
    /// The user of the kernel's first task, too.
    pub(crate) user_found: Reached,
    pub(crate) paths: CgroupPaths,
}

impl Tasks {
    /// The numbers and the name of the task at a hit of the instruction `ip`.
    pub(crate) fn named(&self, hit: &HitState, ip: Gva) -> Option<Task> {
        self.read_current(hit, Position::At(ip), |reader, task| {
            reader.named(task).map(event_task)
        })
    }

    /// The address of the `task_struct` of the task at a hit.
    pub(crate) fn address(&self, hit: &HitState, position: Position) -> Option<Gva> {
        self.read_current(hit, position, |_, task| Some(task))
    }

    /// The task at a hit.
    pub(crate) fn at(&self, hit: &HitState, position: Position) -> Option<TaskAtHit> {
        self.read_current(hit, position, |reader, at| {
            let task = reader.detailed(at, &self.paths).map(event_task);
            Some(TaskAtHit { at, task })
        })
    }

    /// A number of the task at a hit.
    pub(crate) fn number(
        &self,
        hit: &HitState,
        position: Position,
        number: TaskNumber,
    ) -> Option<u32> {
        // As in detours: behind the boot, only a confirmed place counts.
        if number == TaskNumber::User && self.running.boot_patched.get() && !self.user_found.get() {
            return None;
        }
        self.read_current(hit, position, |reader, task| match number {
            TaskNumber::User => reader.user(task),
            TaskNumber::Process => Some(reader.numbers(task)?.process),
            TaskNumber::Thread => Some(reader.numbers(task)?.thread),
        })
    }

    /// The name of the task at a hit, as the kernel has it.
    pub(crate) fn name(&self, hit: &HitState, position: Position) -> Option<[u8; NAME_BYTES]> {
        self.read_current(hit, position, |reader, task| reader.name(task))
    }

    /// Finds the `task_struct` of the task at a hit, and reads it with `read`.
    fn read_current<T>(
        &self,
        hit: &HitState,
        position: Position,
        read: impl FnOnce(&TaskReader<'_, dyn GuestMemory>, Gva) -> Option<T>,
    ) -> Option<T> {
        let layout = self.running.kernel.tasks()?;
        let gs = self.kernel_gs(&hit.registers, position)?;
        let reader = self.reader(layout, &hit.walks);
        read(&reader, self.current(layout, &reader, gs)?)
    }

    /// The processor's per-CPU area; `None` where `gs` may hold another address.
    fn kernel_gs(&self, state: &SystemState, position: Position) -> Option<u64> {
        let located = self.running.located.get();
        let may_be_program = match position {
            // In entry code, `gs` may still be the program's, which can forge a task.
            Position::At(ip) => {
                let linked = located.map_or(ip, |located| located.linked(ip));
                self.running.kernel.is_entry(linked)
            }
            Position::BehindReturn => false,
        };
        if may_be_program || (self.running.boot_patched.get() && !self.found.get()) {
            return None;
        }
        Some(state.system.segments.gs.base)
    }

    /// The `task_struct` of the task of a processor with the per-CPU area at `gs`.
    fn current(
        &self,
        layout: &TaskLayout,
        reader: &TaskReader<'_, dyn GuestMemory>,
        gs: u64,
    ) -> Option<Gva> {
        reader.current(layout.current(gs, self.running.slide().unwrap_or(0)))
    }

    fn reader<'r>(
        &'r self,
        layout: &'r TaskLayout,
        walks: &'r Walks,
    ) -> TaskReader<'r, dyn GuestMemory> {
        // No plant is in a page table or in a task. Every event pays for these reads, and memory without plants is read much faster.
        TaskReader::new(layout, &*self.running.memory, walks)
    }

    /// All that is known of the task with the `task_struct` at `task`.
    pub(crate) fn detailed(&self, paging: &PagingState, task: Gva) -> Option<RunningTask> {
        let layout = self.running.kernel.tasks()?;
        let walks = Walks::new(*paging);
        self.reader(layout, &walks).detailed(task, &self.paths)
    }

    /// The task of a processor with the per-CPU area at `gs`.
    fn of_processor(&self, walks: &Walks, gs: u64) -> Option<RunningTask> {
        let layout = self.running.kernel.tasks()?;
        let reader = self.reader(layout, walks);
        reader.detailed(self.current(layout, &reader, gs)?, &self.paths)
    }

    /// Looks for the kernel's first task on the vCPU. Until it is found, records hold no task.
    ///
    /// # Errors
    ///
    /// If KVM refuses the request for the vCPU's state.
    pub(crate) fn look_for_first(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let is_first = |task: &RunningTask| task.comm.starts_with(FIRST_TASK) && task.tid == 0;
        // The first task is a thread of the kernel, which acts as root.
        let is_root = |task: &RunningTask| task.uid == Some(0) && task.kernel_thread == Some(true);
        let state = vcpu.system_state()?;
        self.paths.forget();
        let gs = state.system.segments.gs.base;
        let found = self.of_processor(&Walks::new(state.paging), gs);
        let found = found.as_ref().filter(|task| is_first(task));
        self.user_found.set(found.is_some_and(is_root));
        self.found.set(found.is_some());
        Ok(())
    }

    /// What a record holds of a task; `None` before the first is found, and for a kernel with another layout than records have room for.
    pub(crate) fn fields(&self) -> Option<TaskFields> {
        let layout = self.running.kernel.tasks().filter(|_| self.found.get())?;
        let fits = layout.comm_bytes == NAME_BYTES;
        Some(TaskFields {
            numbers: i32::try_from(layout.tid).ok().filter(|_| fits)?,
            comm: i32::try_from(layout.comm).ok()?,
            user: user_fields(layout).filter(|_| self.user_found.get()),
        })
    }
}

/// The instruction of a vCPU at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The probed instruction.
    At(Gva),
    /// The instruction behind a call of a followed function, which has run with the kernel's `gs`. In entry code, too.
    BehindReturn,
}

/// The task of a vCPU at a hit.
#[derive(Debug)]
pub(crate) struct TaskAtHit {
    /// The `task_struct`.
    pub(crate) at: Gva,
    /// Its members; `None` if they cannot be read.
    pub(crate) task: Option<Task>,
}

/// The offsets of a task's flags and user; `None` if the kernel does not say where they are.
fn user_fields(layout: &TaskLayout) -> Option<UserFields> {
    let (user, flags) = (layout.user?, layout.flags?);
    let is_number = |slot: Slot| slot.size() == 4;
    let offset = |slot: Slot| i32::try_from(slot.at()).ok();
    (is_number(user.uid) && is_number(flags)).then_some(UserFields {
        flags: offset(flags)?,
        cred: offset(user.cred)?,
        uid: offset(user.uid)?,
    })
}

/// The task of a record.
pub(crate) fn recorded(task: RecordedTask) -> Task {
    Task {
        tid: task.tid.cast_signed(),
        pid: task.pid.cast_signed(),
        comm: until_zero(&task.comm),
        uid: task.user.map(|user| user.uid),
        kernel_thread: task
            .user
            .map(|user| TaskLayout::is_kernel_thread(user.flags.into())),
        ..Task::default()
    }
}
