//! Why a probe cannot be meant.

use introspect::Gva;
use introspect::insn::NotABoundary;

use crate::program::NotAtReturn;

/// A specification that no place in this kernel corresponds to.
#[derive(Debug, thiserror::Error)]
#[error("cannot probe `{spec}`: {problem}")]
pub struct ResolveError {
    /// As the user wrote it.
    pub spec: String,
    /// What is wrong. Part of the message, not its source.
    pub problem: ResolveProblem,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ResolveProblem {
    /// There is no such name.
    #[error("the kernel has no symbol `{name}`")]
    NoSymbol {
        /// The name.
        name: String,
        /// Names that it may have been meant to be.
        near: Vec<String>,
    },
    /// The name is not code.
    #[error("`{name}` is data, not a function")]
    NotAFunction {
        /// The name.
        name: String,
    },
    /// Several functions have the name.
    #[error("the kernel has {} functions called `{name}`", addresses.len())]
    Ambiguous {
        /// The name.
        name: String,
        /// Where they are.
        addresses: Vec<Gva>,
    },
    /// The module is there, its symbol is not.
    #[error("the module `{module}` has no function `{name}`")]
    NotInModule {
        /// The module.
        module: String,
        /// The name, or the glob that nothing matches.
        name: String,
    },
    /// Nothing matches a glob.
    #[error("no function's name matches `{pattern}`")]
    NoMatch {
        /// The glob.
        pattern: String,
    },
    /// Too much matches a glob.
    #[error("it stands for more than {most} functions")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// A value that is not there any more.
    #[error(transparent)]
    NotAtReturn(#[from] NotAtReturn),
    /// No instruction begins there.
    #[error(transparent)]
    Boundary(#[from] NotABoundary),
    /// The address is not in the kernel's text.
    #[error("{address} is not in the kernel's text")]
    NotCode {
        /// The address.
        address: Gva,
    },
    /// A module's symbol, in a kernel whose modules cannot be read.
    #[error("it is in the module `{module}`, and modules cannot be probed here: {why}")]
    Module {
        /// The module.
        module: String,
        /// What is missing.
        why: String,
    },
}

impl ResolveError {
    /// What to do about it, if that can be said.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match &self.problem {
            ResolveProblem::NoSymbol { near, .. } if !near.is_empty() => {
                Some(format!("near names: {}", near.join(", ")))
            }
            ResolveProblem::NoSymbol { .. } | ResolveProblem::NoMatch { .. } => {
                Some("`hyprobe symbols --kernel FILE REGEX` lists what there is".to_owned())
            }
            ResolveProblem::Ambiguous { addresses, .. } => {
                let all: Vec<String> = addresses
                    .iter()
                    .map(|address| format!("kprobe:{address}"))
                    .collect();
                Some(format!("name one by its address: {}", all.join(", ")))
            }
            ResolveProblem::Boundary(NotABoundary::Inside { before, after, .. }) => {
                Some(format!("probe +{before:#x} or +{after:#x}"))
            }
            ResolveProblem::NotAtReturn(error) => Some(error.help()),
            ResolveProblem::TooMany { .. } => Some("use a narrower pattern".to_owned()),
            _ => None,
        }
    }
}
