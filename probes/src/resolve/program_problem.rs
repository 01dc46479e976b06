//! The reasons why no program can be probed.

/// Why a probe in a program is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramProblem {
    /// Handlers of the Rust API.
    #[error(
        "a probe in a program has no handler and no injection: it reports, counts or aggregates"
    )]
    Handler,
    /// The local KVM.
    #[error(
        "this host's KVM interprets the guest's kernel, and does not report where a program executes a page without rights: use a host with VT-x or SVM, or --accel nested"
    )]
    Interpreted,
    /// Some instructions are executed by the hardware, up to a debug register.
    #[error("debug registers do not work on this host, and some instructions of programs need one")]
    DebugRegisters,
    /// The kernel has other functions, or none of their types.
    #[error(
        "the kernel's function `{0}`, or the types of its parameters, cannot be found: probes in programs need it"
    )]
    NoEvent(&'static str),
    /// No types.
    #[error("the kernel's types do not describe the files of programs: {0}")]
    NoTypes(String),
}
