//! The stacks of vCPUs and tasks, of one moment.

use introspect::orc::KernelStack;
use thiserror::Error;

use super::named::{NamedProgram, NamedStack};
use super::reader::StackReader;
use super::vcpu::StoppedVcpu;
use crate::tasks::{RunningTask, SwitchFrames, TaskList, TaskListError, Thread};
use crate::view::KernelView;

/// The most tasks whose stacks are in one list.
const MAX_TASKS: usize = 4096;
/// The letters of tasks that have given their stacks back.
const ENDED: [char; 2] = ['Z', 'X'];

/// Which stacks are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StacksOf {
    /// Those of all vCPUs.
    Vcpus,
    /// That of the vCPU with this number.
    Vcpu(usize),
    /// That of the thread with this number.
    Task(i32),
    /// Those of all vCPUs and all threads.
    All,
}

impl StacksOf {
    /// Whether the stack of the vCPU `vcpu`, or of the task `task`, is one of them.
    fn includes(self, vcpu: Option<usize>, task: Option<&RunningTask>) -> bool {
        match self {
            Self::Vcpus | Self::All => true,
            Self::Vcpu(number) => vcpu == Some(number),
            Self::Task(tid) => task.is_some_and(|task| task.tid == tid),
        }
    }
}

/// Why no stacks could be listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StackListError {
    /// The tasks.
    #[error(transparent)]
    Tasks(#[from] TaskListError),
    /// The machine has fewer vCPUs.
    #[error("the machine has {count} vCPUs, and no number {vcpu}")]
    NoVcpu {
        /// The number.
        vcpu: usize,
        /// The number of vCPUs.
        count: usize,
    },
    /// No thread has the number.
    #[error("the guest has no task {tid}")]
    NoTask {
        /// The number.
        tid: i32,
    },
    /// The list would be too long.
    #[error(
        "the guest has {threads} threads, more than the {limit} whose stacks fit an answer: ask for one with `tid`"
    )]
    TooMany {
        /// The number of threads.
        threads: usize,
        /// The limit.
        limit: usize,
    },
}

impl StackListError {
    /// Advice on how to correct the mistake.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::NoTask { .. } => Some("`hyprobe ps --threads` lists the tasks".to_owned()),
            Self::Tasks(_) | Self::NoVcpu { .. } | Self::TooMany { .. } => None,
        }
    }
}

/// A stack without names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnnamedStack {
    vcpu: Option<usize>,
    task: Option<RunningTask>,
    state: Option<char>,
    user_mode: bool,
    stack: Result<KernelStack, String>,
    program: Option<NamedProgram>,
}

/// The stack of a vCPU, or of a task that is on no vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedStack {
    /// The number of the vCPU.
    pub vcpu: Option<usize>,
    /// The task; `None` for a vCPU before the kernel's first task, and in the kernel's entry code.
    pub task: Option<RunningTask>,
    /// The letter of the task's state; `None` for a vCPU.
    pub state: Option<char>,
    /// Whether the vCPU runs a program.
    pub user_mode: bool,
    /// The functions; none in user mode and for a task that has ended.
    pub stack: NamedStack,
    /// The stack of the program that the vCPU runs, or that has called the kernel.
    pub program: Option<NamedProgram>,
}

/// A reader of stacks, with the places of members in the kernel's types.
#[derive(Debug)]
pub struct StackList {
    of: StacksOf,
    sleepers: Option<Sleepers>,
}

impl StackList {
    /// Takes the places of members from the types of `view`, if `of` needs tasks.
    ///
    /// # Errors
    ///
    /// If the types do not describe tasks.
    pub fn new(view: &KernelView<'_>, of: StacksOf) -> Result<Self, TaskListError> {
        let sleepers = match of {
            StacksOf::Vcpus | StacksOf::Vcpu(_) => None,
            StacksOf::Task(_) | StacksOf::All => Some(Sleepers {
                list: TaskList::new(view)?,
                frames: SwitchFrames::new(view)?,
            }),
        };
        Ok(Self { of, sleepers })
    }

    /// Unwinds the wanted stacks of a machine with the vCPUs `vcpus`, which does not run: first of vCPUs, then of tasks in the order of their start.
    ///
    /// # Errors
    ///
    /// See [`StackListError`].
    pub fn unwind(
        &self,
        view: &KernelView<'_>,
        reader: &StackReader<'_>,
        vcpus: &[StoppedVcpu],
    ) -> Result<Vec<UnnamedStack>, StackListError> {
        let mut found: Vec<_> = vcpus
            .iter()
            .enumerate()
            .map(|(number, vcpu)| {
                let task = reader.task_of(vcpu);
                let stack = reader.of_vcpu(vcpu).map_err(|why| why.to_string());
                let program = |stack| reader.program_of_vcpu(vcpu, stack);
                // Only wanted programs may take what programs may read.
                let is_wanted = self.of.includes(Some(number), task.as_ref());
                UnnamedStack {
                    vcpu: Some(number),
                    state: None,
                    user_mode: vcpu.mode.is_user(),
                    program: stack.as_ref().ok().filter(|_| is_wanted).and_then(program),
                    task,
                    stack,
                }
            })
            .collect();
        if let Some(sleepers) = &self.sleepers {
            found.extend(sleepers.stacks(view, reader, &found, self.of)?);
        }
        found.retain(|found| self.of.includes(found.vcpu, found.task.as_ref()));
        match self.of {
            StacksOf::Vcpu(vcpu) if found.is_empty() => {
                let count = vcpus.len();
                Err(StackListError::NoVcpu { vcpu, count })
            }
            StacksOf::Task(tid) if found.is_empty() => Err(StackListError::NoTask { tid }),
            _ => Ok(found),
        }
    }
}

/// The tasks that are on no vCPU.
#[derive(Debug)]
struct Sleepers {
    list: TaskList,
    frames: SwitchFrames,
}

impl Sleepers {
    /// The stacks of the wanted tasks but those `on_vcpus`.
    fn stacks(
        &self,
        view: &KernelView<'_>,
        reader: &StackReader<'_>,
        on_vcpus: &[UnnamedStack],
        of: StacksOf,
    ) -> Result<Vec<UnnamedStack>, StackListError> {
        let mut tasks = self.list.threads(view)?;
        if let StacksOf::Task(tid) = of {
            tasks.retain(|task| task.tid == tid);
        } else if tasks.len() > MAX_TASKS {
            return Err(StackListError::TooMany {
                threads: tasks.len(),
                limit: MAX_TASKS,
            });
        }
        let running: Vec<i32> = on_vcpus
            .iter()
            .filter_map(|vcpu| vcpu.task.as_ref())
            .map(|task| task.tid)
            .collect();
        let sleeping = tasks.iter().filter(|task| !running.contains(&task.tid));
        Ok(sleeping
            .map(|task| {
                let stack = self.stack(view, reader, task);
                let program = |stack| reader.program_behind(stack, Some(task.at));
                UnnamedStack {
                    vcpu: None,
                    task: Some(RunningTask {
                        tid: task.tid,
                        pid: task.pid,
                        comm: task.comm.clone(),
                        ..RunningTask::default()
                    }),
                    state: Some(task.state),
                    user_mode: false,
                    program: stack.as_ref().ok().and_then(program),
                    stack,
                }
            })
            .collect())
    }

    fn stack(
        &self,
        view: &KernelView<'_>,
        reader: &StackReader<'_>,
        task: &Thread,
    ) -> Result<KernelStack, String> {
        if ENDED.contains(&task.state) {
            return Ok(KernelStack::default());
        }
        match self.frames.of(view, task.at) {
            Ok(Some(frame)) => Ok(reader.of_switched_out(frame)),
            Ok(None) => Err("a vCPU runs the task, or changes to it".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl UnnamedStack {
    /// The stack with names. The guest may run.
    #[must_use]
    pub fn named(self, reader: &StackReader<'_>) -> ListedStack {
        let named = |stack| reader.named(&stack);
        ListedStack {
            vcpu: self.vcpu,
            task: self.task,
            state: self.state,
            user_mode: self.user_mode,
            stack: self.stack.map_or_else(NamedStack::without_frames, named),
            program: self.program,
        }
    }
}
