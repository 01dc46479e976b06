//! The kernel's per-processor variables that detours read.

/// Offsets from `gs` of the kernel's per-processor variables; `None` if the kernel does not reveal the offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Processor {
    /// The processor's number, 32 bits.
    pub number: Option<i64>,
    /// The address of the task that the processor runs.
    pub task: Option<i64>,
}

/// A per-processor variable whose location the kernel does not reveal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// See [`Processor::number`].
    #[error("the kernel does not say where it keeps the number of the processor")]
    Number,
    /// See [`Processor::task`].
    #[error("the kernel does not say where it keeps the task that a processor runs")]
    Task,
}
