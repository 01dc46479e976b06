//! Resolves watchpoints at members of a task: a place in the kernel's `struct task_struct`, and the number of the process.
//!
//! The structs of tasks are on pages with nothing else, and stay there from the start of the task until the kernel frees the struct, which hyprobe sees.

use std::sync::Arc;

use address::Gva;
use errors::chain;
use inspect::FirstThreads;
use manifest::{MAX_WATCHED_BYTES, WatchedData};

use super::place::{MemoryOwner, Place, PlantTime, Via};
use super::task_member::TaskMember;
use super::watch_problem::WatchProblem;
use super::watched::check_register;
use crate::arguments::ArgumentSource;
use crate::kernel::Kernel;

/// The type of tasks.
const TASK: &str = "task_struct";

/// The data in the `struct task_struct` at `task`.
pub(crate) fn in_task(member: &TaskMember, task: Gva) -> Place {
    Place {
        ip: task.wrapping_add(member.offset),
        symbol: Arc::clone(&member.symbol),
        via: Via::Data {
            len: member.len,
            access: member.access,
        },
        when: PlantTime::TextPresent,
        init: false,
        owner: MemoryOwner::Task(task),
        arguments: ArgumentSource::Registers,
    }
}

/// Resolves the member `path` of the process `pid`, whose length `data` may have.
pub(super) fn resolve(
    kernel: &Kernel,
    path: &str,
    pid: u32,
    data: &WatchedData,
) -> Result<TaskMember, WatchProblem> {
    if data.access.has_reads() {
        return Err(WatchProblem::ReadsOfTask);
    }
    let no_tasks = |why| WatchProblem::NoTasks { why };
    let types = kernel.types().map_err(|error| no_tasks(chain(error)))?;
    // The engine finds tasks by these members.
    FirstThreads::new(types).map_err(|error| no_tasks(chain(&error)))?;
    let named = types.struct_named(TASK);
    let task = named.ok_or_else(|| no_tasks(format!("there is no `struct {TASK}`")))?;
    let member = types
        .member(task, path)
        .ok_or_else(|| WatchProblem::NoMember {
            variable: format!("struct {TASK}"),
            path: path.to_owned(),
        })?;
    let bytes = data.bytes.map_or(member.size_bytes, u64::from);
    if bytes > member.size_bytes {
        return Err(WatchProblem::Outside {
            name: path.to_owned(),
            size: member.size_bytes,
        });
    }
    let len = u16::try_from(bytes).ok();
    let len = len.filter(|len| (1..=MAX_WATCHED_BYTES).contains(len));
    let len = len.map(usize::from).ok_or(WatchProblem::Size { bytes })?;
    if data.access.is_in_register() {
        // The kernel aligns the structs of tasks to cache lines.
        check_register(Gva(member.offset_bytes), len)?;
    }
    Ok(TaskMember {
        pid,
        offset: member.offset_bytes,
        len,
        access: data.access,
        symbol: format!("{TASK}.{path}+0x0").into(),
    })
}
