//! The kernel's per-processor variables that detours read.

pub use manifest::program::NAME_BYTES;

/// Offsets from `gs` of the kernel's per-processor variables; `None` if the kernel does not reveal the offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Processor {
    /// The processor's number, 32 bits.
    pub number: Option<i64>,
    /// The address of the task that the processor runs.
    pub task: Option<i64>,
    /// Where a task has what records and programs read of it; without it, records hold no task.
    pub fields: Option<TaskFields>,
}

/// Offsets in the kernel's description of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskFields {
    /// The thread's number and, 4 bytes behind it, the process's; each has 4 bytes.
    pub numbers: i32,
    /// The name, [`NAME_BYTES`] bytes.
    pub comm: i32,
    /// The flags and the user; without them, records hold neither.
    pub user: Option<UserFields>,
}

/// Offsets of a task's flags and user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserFields {
    /// The flags in the description of a task, 4 bytes.
    pub flags: i32,
    /// The pointer to the credentials in the description of a task.
    pub cred: i32,
    /// The user's number in the credentials, 4 bytes.
    pub uid: i32,
}

/// The distance from a thread's number to the process's.
pub(crate) const PROCESS_BYTES: i32 = 4;

/// The task of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedTask {
    /// The thread's number.
    pub tid: u32,
    /// The process's number.
    pub pid: u32,
    /// The name; zeroes behind its end.
    pub comm: [u8; NAME_BYTES],
    /// The user; `None` if the detour does not know where the kernel has it.
    pub user: Option<RecordedUser>,
}

/// The user of a record's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedUser {
    /// The user's number.
    pub uid: u32,
    /// The task's flags.
    pub flags: u32,
}

/// A variable or a member of a task whose location the kernel does not reveal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// See [`Processor::number`].
    #[error("the kernel does not say where it keeps the number of the processor")]
    Number,
    /// See [`Processor::task`].
    #[error("the kernel does not say where it keeps the task that a processor runs")]
    Task,
    /// See [`TaskFields::numbers`].
    #[error(
        "the place of a task's numbers is unknown, or not confirmed at the first task of the kernel"
    )]
    TaskNumbers,
    /// See [`TaskFields::comm`].
    #[error(
        "the place of a task's name is unknown, or not confirmed at the first task of the kernel"
    )]
    TaskName,
    /// See [`TaskFields::user`].
    #[error(
        "the place of a task's user is unknown, or not confirmed at the first task of the kernel"
    )]
    TaskUser,
}
