//! Why modules could not be read.

use address::Gva;
use thiserror::Error;

use crate::paging::VirtReadError;

/// Why modules, or a part of a module, could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModulesError {
    /// The kernel is built without modules, or the kernel's types are cut short.
    #[error("the kernel's types do not describe {what}")]
    NoType {
        /// The struct or the member.
        what: &'static str,
    },
    /// The list has no name in the symbol table.
    #[error("the symbol table has no list of modules")]
    NoList,
    /// A page is missing.
    #[error("cannot read {what} at {address}")]
    Unreadable {
        /// The wanted object.
        what: &'static str,
        /// The address of the read.
        address: Gva,
        /// The failed read.
        source: VirtReadError,
    },
    /// The list does not return to the head.
    #[error("the list of modules does not end within {limit} entries")]
    Endless {
        /// The most entries to follow.
        limit: usize,
    },
    /// An entry of the list is no module.
    #[error("what lies at {address} is not a module: {why}")]
    NotAModule {
        /// The expected address of the module.
        address: Gva,
        /// The defect.
        why: &'static str,
    },
    /// A number too large for any kernel.
    #[error("{count} are too many {what}")]
    TooMany {
        /// The counted objects.
        what: &'static str,
        /// The number in guest memory.
        count: u64,
    },
    /// The modules' tables exceed the limit of one call.
    #[error("the modules' tables take more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}
