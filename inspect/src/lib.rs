//! Answers to questions about a running or dumped kernel, from the kernel's memory, symbols and types.
//!
//! Every answer comes from reads through a [`KernelView`]. A view does not know whether the memory belongs to a running guest or to a
//! file. A running guest may change memory between two reads, and a hostile guest may write anything: every walk is bounded, and an
//! address without memory is an error of one answer.

#![forbid(unsafe_code)]

pub mod expression;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod fixture;
mod log;
mod modules;
mod per_cpu;
mod programs;
mod reads;
pub mod stacks;
mod structs;
mod tasks;
pub mod types;
pub mod value;
mod view;

pub use log::{Log, LogError, LogRecord, LogText};
pub use modules::{ListedModule, ModuleList, ModuleListError};
pub use per_cpu::{PerCpuCopy, PerCpuError, PerCpuList, PerCpuOffsets, PerCpuVariable};
pub use programs::{
    CounterReaders, DirectMap, FileFunction, FileId, FileLayout, FileMark, FileMarks, FileReader,
    FileVersion, FoundBy, MAX_OPERANDS, MappedFiles, MarkCounter, NoCode, OpenFile, ProgramFrame,
    Storage,
};
pub use reads::{ReadsError, until_zero};
pub use structs::NoType;
pub use tasks::{
    CgroupPaths, FirstThreads, ParentTask, RunningTask, Task, TaskList, TaskListError, TaskNumbers,
    TaskReader,
};
pub use view::{KernelMemory, KernelView, NotReadable};
