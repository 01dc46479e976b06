//! Follows the lists of tasks.

use address::Gva;
use introspect::btf::Slot;
use introspect::{Btf, TaskLayout as TaskMembers};

use super::cgroup::Paths;
use super::error::TaskListError;
use super::layout::TaskLayout;
use super::state;
use crate::KernelView;
use crate::programs::DirectMap;
use crate::reads::{Reads, ReadsError, until_zero};

/// The first task, which no list of `/proc` shows.
const FIRST: &str = "init_task";
/// More tasks than a guest of a test has. The default of `kernel.pid_max` is 32768 for few processors.
const MAX_TASKS: usize = 64 << 10;
/// What an answer may read: some 5 KiB for each task.
const MAX_READ_BYTES: usize = 512 << 20;
/// What the command lines and paths of an answer may take in memory: a thousand bytes for each of as many tasks as a large server has.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// A thread, as far as the list itself tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    /// The address of the `task_struct`.
    pub at: Gva,
    /// The thread's number (`pid` in the kernel).
    pub tid: i32,
    /// The process's number (`tgid` in the kernel).
    pub pid: i32,
    /// The name, without the work of a workqueue's thread.
    pub comm: String,
    /// The state's letter, as `/proc/PID/stat` shows it.
    pub state: char,
}

/// A task: a process, or a thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The thread's number (`pid` in the kernel).
    pub tid: i32,
    /// The process's number (`tgid` in the kernel).
    pub pid: i32,
    /// The number of the parent's process.
    pub parent: i32,
    /// The name, as `/proc/PID/comm` shows it.
    pub comm: String,
    /// The real user.
    pub uid: u32,
    /// The effective user, as `ps` shows it.
    pub euid: u32,
    /// The state's letter, as `/proc/PID/stat` shows it.
    pub state: char,
    /// Whether the task is a thread of the kernel.
    pub kernel_thread: bool,
    /// The path of the cgroup in the hierarchy of version 2.
    pub cgroup: Option<String>,
    /// The words of the command line; empty for a thread of the kernel, and if the page is not in memory.
    pub command_line: Vec<String>,
}

/// A reader of the tasks. Made while the kernel runs; reads while the kernel is paused.
#[derive(Debug)]
pub struct TaskList {
    pub(super) layout: TaskLayout,
}

/// A walk along the lists in progress.
struct Walk<'w> {
    layout: &'w TaskLayout,
    reads: Reads<'w>,
    /// The number of entries that may still be followed.
    left: usize,
}

/// What is done with the bytes of a `task_struct`.
type Visit<'v> = &'v mut dyn FnMut(&Reads<'_>, Gva, &[u8]) -> Result<(), TaskListError>;

/// The tasks read so far, with what lies behind their structs.
struct Details<'w> {
    layout: &'w TaskLayout,
    map: Option<DirectMap>,
    paths: Paths,
    tasks: Vec<Task>,
    /// The number of bytes that texts may still take.
    text_left: usize,
}

impl TaskList {
    /// Takes the layout of tasks from the types of `view`.
    ///
    /// # Errors
    ///
    /// If the types do not describe tasks.
    pub fn new(view: &KernelView<'_>) -> Result<Self, TaskListError> {
        let types = view.types().ok_or(TaskListError::NoTypes)?;
        Self::of(types)
    }

    /// Takes the layout of tasks from `types`.
    pub(super) fn of(types: &Btf) -> Result<Self, TaskListError> {
        let layout = TaskLayout::new(types)?;
        Ok(Self { layout })
    }

    /// All processes in the order of the kernel's list, which is the order of their start; with `threads`, all threads of each.
    ///
    /// The kernel lets processors read the lists without a lock, so the lists are whole at each moment of a paused kernel.
    ///
    /// # Errors
    ///
    /// If a list is broken, or a task cannot be read.
    pub fn read(&self, view: &KernelView<'_>, threads: bool) -> Result<Vec<Task>, TaskListError> {
        let mut details = Details {
            layout: &self.layout,
            map: DirectMap::find(view),
            paths: Paths::new(),
            tasks: Vec::new(),
            text_left: MAX_TEXT_BYTES,
        };
        self.each(view, threads, &mut |reads, at, bytes| {
            details.add(reads, at, bytes)
        })?;
        Ok(details.tasks)
    }

    /// All threads of all processes, read with the list alone.
    ///
    /// # Errors
    ///
    /// If a list is broken.
    pub(crate) fn threads(&self, view: &KernelView<'_>) -> Result<Vec<Thread>, TaskListError> {
        let mut threads = Vec::new();
        self.each(view, true, &mut |_, at, bytes| {
            threads.push(self.layout.thread(at, bytes));
            Ok(())
        })?;
        Ok(threads)
    }

    /// Visits the first thread of each process, or with `threads` all threads.
    pub(super) fn each(
        &self,
        view: &KernelView<'_>,
        threads: bool,
        visit: Visit<'_>,
    ) -> Result<(), TaskListError> {
        let first = view.address_of(FIRST).ok_or(TaskListError::NoList)?;
        let mut walk = Walk {
            layout: &self.layout,
            reads: Reads::new(view, MAX_READ_BYTES),
            left: MAX_TASKS,
        };
        let next = |bytes: &[u8]| Gva(self.layout.tasks.read(bytes).unwrap_or_default());
        let head = first.wrapping_add(self.layout.tasks.at() as u64);
        let mut link = next(&walk.bytes(first)?);
        while link != head {
            let at = Gva(link.0.wrapping_sub(self.layout.tasks.at() as u64));
            let bytes = walk.next(at)?;
            if threads {
                walk.threads(at, &bytes, visit)?;
            } else {
                visit(&walk.reads, at, &bytes)?;
            }
            link = next(&bytes);
        }
        Ok(())
    }
}

fn unreadable(what: &'static str, at: Gva) -> impl FnOnce(ReadsError) -> TaskListError {
    move |source| TaskListError::Unreadable { what, at, source }
}

impl Walk<'_> {
    /// The bytes of the `task_struct` at `at`.
    fn bytes(&self, at: Gva) -> Result<Vec<u8>, TaskListError> {
        let bytes = self.reads.bytes(at, self.layout.len);
        bytes.map_err(unreadable("members", at))
    }

    /// The bytes of a list's next entry.
    fn next(&mut self, at: Gva) -> Result<Vec<u8>, TaskListError> {
        let limit = MAX_TASKS;
        self.left = self
            .left
            .checked_sub(1)
            .ok_or(TaskListError::Endless { limit })?;
        self.bytes(at)
    }

    /// Visits the threads of the process with the first thread at `leader`.
    fn threads(
        &mut self,
        leader: Gva,
        bytes: &[u8],
        visit: Visit<'_>,
    ) -> Result<(), TaskListError> {
        let layout = self.layout;
        let Some(signal) = layout.signal.read(bytes).filter(|at| *at != 0).map(Gva) else {
            return visit(&self.reads, leader, bytes);
        };
        let head = signal.wrapping_add(layout.thread_head.at() as u64);
        let first = self.reads.number(signal, layout.thread_head);
        let mut link = Gva(first.map_err(unreadable("list of threads", leader))?);
        while link != head {
            let at = Gva(link.0.wrapping_sub(layout.threads.at() as u64));
            let bytes = self.next(at)?;
            visit(&self.reads, at, &bytes)?;
            link = Gva(layout.threads.read(&bytes).unwrap_or_default());
        }
        Ok(())
    }
}

impl TaskLayout {
    /// What the `task_struct` at `at` with these `bytes` tells by itself.
    pub(super) fn thread(&self, at: Gva, bytes: &[u8]) -> Thread {
        let word = |slot: Slot| slot.read(bytes).unwrap_or_default();
        Thread {
            at,
            tid: number(word(self.tid)),
            pid: number(word(self.pid)),
            comm: until_zero(bytes.get(self.comm.clone()).unwrap_or_default()),
            state: state::letter(word(self.state), word(self.exit_state)),
        }
    }
}

impl Details<'_> {
    fn add(&mut self, reads: &Reads<'_>, at: Gva, bytes: &[u8]) -> Result<(), TaskListError> {
        let layout = self.layout;
        let word = |slot: Slot| slot.read(bytes).unwrap_or_default();
        let Thread {
            tid,
            pid,
            mut comm,
            state,
            ..
        } = layout.thread(at, bytes);
        let flags = word(layout.flags);
        let kernel_thread = TaskMembers::is_kernel_thread(flags);
        if let Some(worker) = layout.worker.as_ref().filter(|_| kernel_thread) {
            // A thread that is about to end has given its `struct kthread` back.
            if let Ok(Some(name)) = worker.of(reads, bytes, &comm, flags) {
                comm = name;
            }
        }
        let cred = Gva(word(layout.cred));
        let user = |slot| {
            reads
                .number(cred, slot)
                .map_err(unreadable("credentials", at))
        };
        let parent = reads.number(Gva(word(layout.parent)), layout.pid);
        let cgroup = layout.cgroup.as_ref();
        let path = cgroup.and_then(|cgroup| cgroup.path(reads, bytes, &mut self.paths));
        let command_line = self.command_line(reads, Gva(word(layout.memory)), kernel_thread);
        let words = command_line
            .iter()
            .map(|word| size_of_val(word) + word.len());
        let text = path.as_ref().map_or(0, String::len) + words.sum::<usize>();
        let limit = MAX_TEXT_BYTES;
        self.text_left = self
            .text_left
            .checked_sub(text)
            .ok_or(TaskListError::TooLong { limit })?;
        let task = Task {
            tid,
            pid,
            parent: number(parent.map_err(unreadable("parent", at))?),
            comm,
            uid: unsigned(user(layout.uid)?),
            euid: unsigned(user(layout.euid)?),
            state,
            kernel_thread,
            cgroup: path,
            command_line,
        };
        self.tasks.push(task);
        Ok(())
    }

    /// The command line of the program in the address space at `memory`. Programs may be damaged or gone: no words then.
    fn command_line(&self, reads: &Reads<'_>, memory: Gva, kernel_thread: bool) -> Vec<String> {
        let (Some(program), Some(map)) = (&self.layout.program, self.map) else {
            return Vec::new();
        };
        // A thread of the kernel may borrow a program's address space.
        if memory == Gva(0) || kernel_thread {
            return Vec::new();
        }
        program.words(reads, map, memory).unwrap_or_default()
    }
}

/// The low half, as a signed number: the kernel's `pid_t`.
fn number(value: u64) -> i32 {
    unsigned(value).cast_signed()
}

/// The low half.
fn unsigned(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default()
}
