//! Why modules could not be read.

use thiserror::Error;

use crate::{Gva, paging::VirtReadError};

/// Why modules, or a part of one, could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModulesError {
    /// The kernel is built without modules, or its types are cut short.
    #[error("the kernel's types do not describe {what}")]
    NoType {
        /// The struct or its member.
        what: &'static str,
    },
    /// The list has no name in the symbol table.
    #[error("the symbol table has no list of modules")]
    NoList,
    /// A page is not there.
    #[error("cannot read {what} at {address}")]
    Unreadable {
        /// What was looked for.
        what: &'static str,
        /// Where.
        address: Gva,
        /// The read that failed.
        source: VirtReadError,
    },
    /// The list does not come back to its head.
    #[error("the list of modules does not end within {limit} entries")]
    Endless {
        /// How many were followed.
        limit: usize,
    },
    /// What the list leads to is no module.
    #[error("what lies at {address} is not a module: {why}")]
    NotAModule {
        /// Where it was expected.
        address: Gva,
        /// What is wrong.
        why: &'static str,
    },
    /// A number that no kernel has.
    #[error("{count} are too many {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// What the guest says.
        count: u64,
    },
    /// One call reads so many bytes and no more.
    #[error("the modules' tables take more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}
