//! Why tasks could not be listed.

use address::Gva;
use thiserror::Error;

use crate::reads::ReadsError;
use crate::structs::NoType;

/// Why the tasks could not be listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TaskListError {
    /// The kernel has no BTF.
    #[error("the kernel has no type information (BTF), and tasks are found by their types")]
    NoTypes,
    /// The types lack a part of a task.
    #[error(transparent)]
    NoType(#[from] NoType),
    /// The first task has no name in the symbol table.
    #[error("the kernel's symbol table has no `init_task`, where the list of tasks begins")]
    NoList,
    /// A part of a task is not in memory.
    #[error("cannot read the {what} of the task at {at}")]
    Unreadable {
        /// The part.
        what: &'static str,
        /// The address of the `task_struct`.
        at: Gva,
        /// The failed read.
        source: ReadsError,
    },
    /// The texts of the tasks need more memory than an answer may take.
    #[error("the command lines and cgroups of the tasks take more than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The lists do not return to their heads.
    #[error("the lists of tasks do not end within {limit} entries")]
    Endless {
        /// The most entries to follow.
        limit: usize,
    },
}
