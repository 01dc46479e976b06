//! The route for stacks.
//!
//! ```text
//!  control-changes:  places of members ── pause: registers, list of tasks, return addresses ── names ── answer
//!                    (the guest runs)     (vCPUs stand)                                     (the guest runs)
//! ```

use std::sync::Arc;

use axum::extract::State;
use errors::chain;
use events::Task;
use inspect::{SwitchFrames, TaskList};
use introspect::orc::KernelStack;
use probes::{ProgramPart, Stack, StackReader, VcpuPosition};
use serde::Deserialize;
use text::Paused;
use utoipa::IntoParams;
use vmm::VcpuState;

use super::app::App;
use super::body::{Asked, Told};
use super::views::{cannot_view, prepared};
use crate::api::{ListedStack, Problem, ProblemKind, Stacks};
use crate::limits::STACKS;
use crate::operator::Bench;
use crate::target::Target;
use crate::target_memory::TargetMemory;

/// The letters of tasks that have given their stacks back.
const ENDED: [char; 2] = ['Z', 'X'];

/// Query of stacks. Without a part, the vCPUs' stacks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StacksQuery {
    /// Number of the vCPU whose stack is wanted; excludes `tid` and `all`.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    vcpu: Option<usize>,
    /// Number of the thread (the kernel's `pid`) whose stack is wanted; excludes `vcpu` and `all`.
    #[serde(default)]
    tid: Option<i32>,
    /// Whether the stacks of all vCPUs and all threads are wanted; default `false`.
    #[serde(default)]
    all: bool,
}

/// The wanted stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Vcpus,
    Vcpu(usize),
    Task(i32),
    All,
}

/// Unwinds the stacks of the vCPUs, of one vCPU, of one thread, or of all.
#[utoipa::path(get, path = "/stacks", tag = "look", params(StacksQuery),
    responses((status = 200, description = "The stacks", body = Stacks),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such task, or no such vCPU", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "Parts of the query exclude each other, the kernel has no tables for unwinding, or there are too many tasks; for tasks also: the kernel has no type information, has not booted far enough, or its list of tasks is damaged", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "KVM refused the registers", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stacks(
    State(app): State<Arc<App>>,
    Asked(asked): Asked<StacksQuery>,
) -> Result<Told<Stacks>, Problem> {
    let wanted = match (asked.vcpu, asked.tid, asked.all) {
        (None, None, false) => Wanted::Vcpus,
        (Some(vcpu), None, false) => Wanted::Vcpu(vcpu),
        (None, Some(tid), false) => Wanted::Task(tid),
        (None, None, true) => Wanted::All,
        _ => {
            let detail = "`vcpu`, `tid` and `all` exclude each other";
            return Err(ProblemKind::Contradictory.with(detail));
        }
    };
    let read = move |bench: &mut Bench<'_>| read(bench, wanted);
    Ok(Told(app.operator.run(read).await??))
}

/// A stack without names.
struct Unnamed {
    vcpu: Option<usize>,
    task: Option<Task>,
    state: Option<char>,
    user_mode: bool,
    stack: Result<KernelStack, String>,
    program: ProgramPart,
}

fn read(bench: &mut Bench<'_>, wanted: Wanted) -> Result<Stacks, Problem> {
    let target = bench.target();
    let tasks = match wanted {
        Wanted::Vcpus | Wanted::Vcpu(_) => None,
        Wanted::Task(_) | Wanted::All => Some(Sleepers {
            list: prepared(target, TaskList::new)?,
            frames: prepared(target, SwitchFrames::new)?,
        }),
    };
    // The tables of the kernel are read now, and not in the pause.
    let early = target.stack_reader(&VcpuState::default());
    early.map_err(|error| ProblemKind::CannotRead.with(chain(&error)))?;
    let (found, pause) = bench.paused(|target, paused| unwind(target, paused, wanted, tasks));
    let (found, reader) = found?;
    let named = found.into_iter().map(|found| found.named(&reader));
    Ok(Stacks {
        stacks: named.collect(),
        pause,
    })
}

/// Unwinds the wanted stacks while no vCPU runs.
fn unwind<'t>(
    target: &'t dyn Target,
    paused: &dyn Paused,
    wanted: Wanted,
    sleepers: Option<Sleepers>,
) -> Result<(Vec<Unnamed>, StackReader<'t>), Problem> {
    let vcpus = paused.vcpu_states();
    let vcpus = vcpus.map_err(|error| ProblemKind::KvmRefused.with(chain(&error)))?;
    let first = vcpus.first().copied().unwrap_or_default();
    let reader = target.stack_reader(&first);
    let reader = reader.map_err(|error| ProblemKind::CannotRead.with(chain(&error)))?;
    let mut found: Vec<Unnamed> = (0..)
        .zip(&vcpus)
        .map(|(number, vcpu)| {
            let position = reader.of_vcpu(vcpu);
            let user_mode = position == VcpuPosition::UserMode;
            let task = reader.task_of(vcpu);
            let is_wanted = match wanted {
                Wanted::Vcpus | Wanted::All => true,
                Wanted::Vcpu(vcpu) => vcpu == number,
                Wanted::Task(tid) => task.as_ref().is_some_and(|task| task.tid == tid),
            };
            let program = || reader.program_of_vcpu(vcpu, &position);
            Unnamed {
                vcpu: Some(number),
                task,
                state: None,
                user_mode,
                program: is_wanted.then(program).unwrap_or_default(),
                stack: position.into_stack().map_err(|why| why.to_string()),
            }
        })
        .collect();
    if let Some(sleepers) = sleepers {
        found.extend(sleepers.stacks(target, &reader, &found, wanted)?);
    }
    found.retain(|found| match wanted {
        Wanted::Vcpus | Wanted::All => true,
        Wanted::Vcpu(vcpu) => found.vcpu == Some(vcpu),
        Wanted::Task(tid) => found.task.as_ref().is_some_and(|task| task.tid == tid),
    });
    match wanted {
        Wanted::Vcpu(vcpu) if found.is_empty() => {
            let detail = format!(
                "the machine has {} vCPUs, and no number {vcpu}",
                vcpus.len()
            );
            Err(ProblemKind::NoSuchTask.with(detail))
        }
        Wanted::Task(tid) if found.is_empty() => {
            let problem = ProblemKind::NoSuchTask.with(format!("the guest has no task {tid}"));
            Err(problem.help(Some("`hyprobe ps --threads` lists the tasks".to_owned())))
        }
        _ => Ok((found, reader)),
    }
}

/// The tasks that are on no vCPU.
struct Sleepers {
    list: TaskList,
    frames: SwitchFrames,
}

impl Sleepers {
    /// The stacks of the wanted tasks but those `on_vcpus`.
    fn stacks(
        &self,
        target: &dyn Target,
        reader: &StackReader<'_>,
        on_vcpus: &[Unnamed],
        wanted: Wanted,
    ) -> Result<Vec<Unnamed>, Problem> {
        let memory = TargetMemory(target);
        let view = memory.kernel();
        let tasks = self.list.threads(&view);
        let mut tasks = tasks.map_err(|error| cannot_view(target, &error))?;
        if let Wanted::Task(tid) = wanted {
            tasks.retain(|task| task.tid == tid);
        } else if tasks.len() > STACKS {
            let detail = format!(
                "the guest has {} threads, more than the {STACKS} whose stacks fit an answer: ask for one with `tid`",
                tasks.len()
            );
            return Err(ProblemKind::CannotRead.with(detail));
        }
        let running: Vec<i32> = on_vcpus
            .iter()
            .filter_map(|vcpu| vcpu.task.as_ref())
            .map(|task| task.tid)
            .collect();
        let sleeping = tasks.iter().filter(|task| !running.contains(&task.tid));
        let stack = |task: &inspect::Thread| {
            if ENDED.contains(&task.state) {
                return Ok(KernelStack::default());
            }
            match self.frames.of(&view, task.at) {
                Ok(Some(frame)) => Ok(reader.of_switched_out(frame)),
                Ok(None) => Err("a vCPU runs the task, or changes to it".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        Ok(sleeping
            .map(|task| {
                let stack = stack(task);
                let program = stack.as_ref().ok();
                let program = program.map(|stack| reader.program_behind(stack, Some(task.at)));
                Unnamed {
                    vcpu: None,
                    task: Some(Task {
                        tid: task.tid,
                        pid: task.pid,
                        comm: task.comm.clone(),
                        ..Task::default()
                    }),
                    state: Some(task.state),
                    user_mode: false,
                    program: program.unwrap_or_default(),
                    stack,
                }
            })
            .collect())
    }
}

impl Unnamed {
    fn named(self, reader: &StackReader<'_>) -> ListedStack {
        let named = self
            .stack
            .map_or_else(Stack::without_frames, |stack| reader.named(&stack));
        ListedStack {
            vcpu: self.vcpu,
            task: self.task,
            state: self.state,
            user_mode: self.user_mode,
            stack: named.frames,
            stack_incomplete: named.incomplete,
            program_stack: self.program.frames,
            program_stack_incomplete: self.program.incomplete,
        }
    }
}
