//! The reasons why a probe specification cannot be resolved.

use address::Gva;
use introspect::insn::NotABoundary;
use manifest::program::NotAtReturn;

use super::program_problem::ProgramProblem;
use super::watch_problem::WatchProblem;

/// The remedy for a pattern without a match.
pub const PATTERN_HELP: &str = "patterns are globs: `*` is any characters (`.*` in a regular expression), `?` is one, `[a-z]` is one of a set";

/// A specification without a corresponding site in this kernel.
#[derive(Debug, thiserror::Error)]
#[error("cannot probe `{spec}`: {problem}")]
pub struct ResolveError {
    /// The user's specification.
    pub spec: String,
    /// The problem. Part of the message, not its source.
    pub problem: ResolveProblem,
}

/// The problem with a specification.
#[derive(Debug, thiserror::Error)]
pub enum ResolveProblem {
    /// The kernel has no symbol of the name.
    #[error("the kernel has no symbol `{name}`")]
    NoSymbol {
        /// The name.
        name: String,
        /// Similar names.
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
        /// The addresses of the functions.
        addresses: Vec<Gva>,
    },
    /// The module is loaded, and has no symbol of the name.
    #[error("the module `{module}` has no function `{name}`")]
    NotInModule {
        /// The module.
        module: String,
        /// The name, or the glob without a match.
        name: String,
    },
    /// The module is loaded, and the site is in another build.
    #[error(
        "the build-id of the module `{module}` {}, and that of the probe begins with {wanted}",
        .build_id.as_ref().map_or_else(|| "is not known".to_owned(), |id| format!("is {id}"))
    )]
    OtherBuild {
        /// The module.
        module: String,
        /// The first digits of the build-id in the specification.
        wanted: String,
        /// The build-id of the loaded module, if it has one in memory.
        build_id: Option<String>,
    },
    /// No function matches a glob.
    #[error("no function's name matches `{pattern}`")]
    NoMatch {
        /// The glob.
        pattern: String,
    },
    /// Another system call has replaced the system call for 64-bit programs.
    #[error("no 64-bit program makes the system call `{name}`, which `new{name}` has replaced")]
    OldSyscall {
        /// The name.
        name: String,
    },
    /// The kernel has no system call of the name.
    #[error("the kernel has no system call `{name}`")]
    NoSyscall {
        /// The name.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The kernel was built without the system call.
    #[error("the kernel was built without the system call `{name}`")]
    NotImplemented {
        /// The name.
        name: String,
    },
    /// No system call matches a glob.
    #[error("no system call's name matches `{pattern}`")]
    NoMatchingSyscall {
        /// The glob.
        pattern: String,
    },
    /// The kernel's tables of tracepoints cannot be read.
    #[error("the kernel's tracepoints cannot be found: {why}")]
    NoTracepoints {
        /// The missing information.
        why: String,
    },
    /// The kernel has no tracepoint of the name.
    #[error("the kernel has no tracepoint `{name}`")]
    NoTracepoint {
        /// The group and the name.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The kernel proper passes no tracepoint of the name, or none matches a glob.
    #[error("the kernel without its modules passes no tracepoint `{name}`")]
    NoTracepointSite {
        /// The specification.
        name: String,
    },
    /// Too many functions match a glob.
    #[error("it stands for more than {most} places")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// Too many probes in all.
    #[error("with it, there are more than {most} probes")]
    TooManyProbes {
        /// The limit.
        most: usize,
    },
    /// The data cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchProblem),
    /// No program can be probed.
    #[error(transparent)]
    Program(#[from] ProgramProblem),
    /// The program reads a value that is lost at the return.
    #[error(transparent)]
    NotAtReturn(#[from] NotAtReturn),
    /// The program reads a number or the name of the task, and its place is not known.
    #[error("its program cannot read `{name}`: the kernel's types do not say where a task has it")]
    NoTaskNumber {
        /// The operand.
        name: &'static str,
    },
    /// No instruction begins at the address.
    #[error(transparent)]
    Boundary(#[from] NotABoundary),
    /// The address is not in the kernel's text.
    #[error("{address} is not in the kernel's text")]
    NotCode {
        /// The address.
        address: Gva,
    },
    /// A source line or inlined copies, which the sender of the probe has to replace.
    #[error("the engine reads no debug information")]
    NoDebugInfo,
    /// A module's symbol, in a kernel whose modules cannot be read.
    #[error("it is in the module `{module}`, and modules cannot be probed here: {why}")]
    Module {
        /// The module.
        module: String,
        /// The missing information.
        why: String,
    },
}

impl ResolveError {
    /// The remedy, if known.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match &self.problem {
            ResolveProblem::NoSymbol { near, .. } if !near.is_empty() => {
                Some(format!("near names: {}", near.join(", ")))
            }
            ResolveProblem::NoSymbol { .. } => {
                Some("`hyprobe symbols --kernel FILE PATTERN` lists the symbols".to_owned())
            }
            ResolveProblem::NoSyscall { near, .. } | ResolveProblem::NoTracepoint { near, .. }
                if !near.is_empty() =>
            {
                Some(format!("near names: {}", near.join(", ")))
            }
            ResolveProblem::OldSyscall { name } => Some(format!("write new{name}")),
            ResolveProblem::NotImplemented { .. } => Some(
                "to see programs that try it, write syscall:ni_syscall, or kprobe:__x64_sys_NAME"
                    .to_owned(),
            ),
            ResolveProblem::NoSyscall { .. } => Some(
                "`hyprobe symbols --kernel FILE '__x64_sys_*'` lists the functions of system calls"
                    .to_owned(),
            ),
            ResolveProblem::NoMatch { .. } | ResolveProblem::NoMatchingSyscall { .. } => {
                Some(PATTERN_HELP.to_owned())
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
            ResolveProblem::Watch(problem) => problem.help(),
            ResolveProblem::NotAtReturn(error) => Some(error.help()),
            ResolveProblem::NoTaskNumber { .. } => {
                Some("use a kernel with type information (BTF), or a filter without it".to_owned())
            }
            ResolveProblem::NoDebugInfo => Some(
                "`hyprobe run` and `hyprobe probe add`, with --debug-info FILE, replace it by kprobe:SYMBOL+OFFSET"
                    .to_owned(),
            ),
            ResolveProblem::TooMany { .. } | ResolveProblem::TooManyProbes { .. } => {
                Some("use a narrower pattern".to_owned())
            }
            _ => None,
        }
    }
}
