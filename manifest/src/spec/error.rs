//! Errors in the text of a probe, with their positions.

use std::ops::Range;

use thiserror::Error;

use super::ProbeKind;
use crate::suggest::did_you_mean;

/// The error in an invalid probe specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct SpecError {
    /// The problem.
    pub problem: SpecProblem,
    /// The bytes of the text with the problem.
    pub span: Range<usize>,
}

/// The problem with a probe specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecProblem {
    /// The text is empty.
    #[error("a probe is missing")]
    Empty,
    /// The text is longer than any symbol name.
    #[error("it has {0} bytes, and no name of a symbol has more than {MAX_BYTES}")]
    TooLong(usize),
    /// The text has no colon.
    #[error("it does not say what kind of probe `{0}` is")]
    NoKind(String),
    /// A known kind that hyprobe does not support.
    #[error("this version has no {0} probes")]
    NotYet(&'static str),
    /// An unknown kind.
    #[error("there is no probe kind `{0}`")]
    UnknownKind(String),
    /// The text ends after the kind.
    #[error("it does not say where: the symbol or address is missing")]
    NoLocation,
    /// An empty or invalid module name.
    #[error("`{0}` cannot be the name of a module")]
    BadModule(String),
    /// A build-id that is none.
    #[error("`{0}` cannot be the beginning of a module's build-id")]
    BadBuild(String),
    /// More parts than a kind, a module and a symbol.
    #[error("it has too many colons")]
    TooManyColons,
    /// An address in a module.
    #[error("an address belongs to no module")]
    AddressInModule,
    /// An invalid address, or an address of more than 64 bits.
    #[error("`{0}` is not an address")]
    BadAddress(String),
    /// A character that is invalid in symbol names.
    #[error("`{0}` cannot be in the name of a symbol")]
    BadCharacter(char),
    /// An invalid offset.
    #[error("`{0}` is not an offset")]
    BadOffset(String),
    /// An offset from an address.
    #[error("an address has no offset")]
    OffsetFromAddress,
    /// A return probe with an offset in a function.
    #[error("a function returns once, wherever it is entered: a return probe has no offset")]
    OffsetOfReturn,
    /// A return probe at an offset in a file.
    #[error("an offset in a file is no function: a return probe has the name of a function")]
    FileOffsetOfReturn,
    /// A pattern with an offset.
    #[error(
        "a pattern has no offset: the same offset would be inside another instruction in each function"
    )]
    OffsetFromPattern,
    /// An event of ftrace for system calls, with the probe that means the same.
    #[error("the events of system calls are no tracepoints of their own")]
    SyscallEvent(String),
    /// A tracepoint without a group, or with an offset or an address.
    #[error("a tracepoint has a group and a name, and nothing else")]
    NotATracepoint,
    /// A return probe, or another kind, at a source line or at inlined copies.
    #[error(
        "only kprobes are at source lines and at inlined copies: the others are about whole functions"
    )]
    LineOfOther,
    /// A source line that is no number from 1 on.
    #[error("`{0}` is not the number of a line")]
    BadLine(String),
    /// A system call with an offset.
    #[error("a system call has no offset")]
    OffsetOfSyscall,
    /// A system call by address.
    #[error("a system call is found by its name, not by an address")]
    AddressOfSyscall,
    /// A watchpoint at an address, without a length.
    #[error("the length of the data at an address is not known")]
    NoLength,
    /// A variable of a module, without a length.
    #[error("the length of a module's variable is not known")]
    NoLengthInModule,
    /// A length that no watchpoint has.
    #[error("`{0}` is not a length of watched data: 1 to 4096 bytes")]
    BadLength(String),
    /// An access that no watchpoint has.
    #[error(
        "`{0}` is not an access: `w` for writes, `r` for reads, `rw` for both, `hw` for writes by a debug register"
    )]
    BadAccess(String),
    /// A member of a struct whose address is not known.
    #[error(
        "a member of a struct is watched in a task only: `struct task_struct.MEMBER@pid:NUMBER`"
    )]
    MemberOfOther,
    /// A number that no process has.
    #[error("`{0}` is not the number of a process: 1 to 4194303")]
    BadProcess(String),
    /// A file without a function or an offset.
    #[error("it does not say where in the file: the function or offset is missing")]
    NoPlaceInFile,
    /// A file without a mark.
    #[error("it does not name the marks of the file: the provider or the name is missing")]
    NoMark,
    /// A path that no file has.
    #[error(
        "`{0}` is not the path of a file: it begins with `/`, and has no `.`, `..` or empty part"
    )]
    BadPath(String),
    /// A system call in a module.
    #[error("a system call belongs to no module")]
    SyscallInModule,
}

/// The maximum length of a probe's text. Linux cuts symbols at 511 bytes, and modules at 55.
pub(super) const MAX_BYTES: usize = 640;

/// Kinds of probes in other tracers, which users will try.
pub(super) const ELSEWHERE: [&str; 2] = ["fentry", "fexit"];
/// The word of other tracers for `watch`.
const WATCHPOINT: &str = "watchpoint";

impl SpecError {
    /// The right notation, if known.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let known = ProbeKind::ALL.map(ProbeKind::keyword);
        let existing = known.join(", ");
        match &self.problem {
            SpecProblem::Empty | SpecProblem::NoLocation => {
                Some("write kprobe:SYMBOL, kprobe:SYMBOL+OFFSET or kprobe:0xADDRESS".to_owned())
            }
            SpecProblem::NoKind(place) => Some(format!("write kprobe:{place}")),
            SpecProblem::NotYet(_) => Some(format!("there is: {existing}")),
            SpecProblem::UnknownKind(word) if word == WATCHPOINT => {
                Some(format!("write {}", ProbeKind::Watch.keyword()))
            }
            SpecProblem::NoLength => Some("write watch:ADDRESS:8, for 8 bytes".to_owned()),
            SpecProblem::NoLengthInModule => {
                Some("write watch:MODULE:NAME:8, for 8 bytes".to_owned())
            }
            SpecProblem::BadLength(name) if name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                Some("write watch:NAME:8, or watch:MODULE:NAME:8 for data of a module".to_owned())
            }
            SpecProblem::BadLength(_) => {
                Some("write watch:NAME:8, or watch:NAME+OFFSET:8 for a part".to_owned())
            }
            SpecProblem::BadAccess(access) if access == "x" => {
                Some("write kprobe:SYMBOL or kprobe:0xADDRESS for executions".to_owned())
            }
            SpecProblem::BadAccess(_) => Some("write watch:NAME:8:rw".to_owned()),
            SpecProblem::MemberOfOther => Some(
                "write watch:NAME.MEMBER for a member of a variable, or watch:0xADDRESS:LENGTH"
                    .to_owned(),
            ),
            SpecProblem::NoPlaceInFile => {
                Some("write uprobe:PATH:FUNCTION or uprobe:PATH:0xOFFSET".to_owned())
            }
            SpecProblem::NoMark => Some("write usdt:PATH:PROVIDER:NAME".to_owned()),
            SpecProblem::BadPath(_) => {
                Some("write the path that /proc/PID/maps shows, like /usr/bin/env".to_owned())
            }
            SpecProblem::UnknownKind(word) => Some(match did_you_mean(word, known) {
                Some(kind) => format!("did you mean `{kind}`?"),
                None => format!("there is: {existing}"),
            }),
            SpecProblem::SyscallEvent(right) => Some(format!("write {right}")),
            SpecProblem::NotATracepoint => {
                Some("write tracepoint:GROUP:NAME, like tracepoint:sched:sched_switch".to_owned())
            }
            SpecProblem::OffsetOfSyscall => {
                Some("write kprobe:__x64_sys_NAME+OFFSET, with the call's function".to_owned())
            }
            SpecProblem::AddressOfSyscall => {
                Some("write syscall:NAME, or kprobe:0xADDRESS".to_owned())
            }
            SpecProblem::SyscallInModule => {
                Some("write syscall:NAME, or retsyscall:NAME for its return".to_owned())
            }
            SpecProblem::BadLine(_) => {
                Some("write kprobe:FILE:LINE, like kprobe:fs/read_write.c:450, or kprobe:MODULE:FILE:LINE".to_owned())
            }
            SpecProblem::LineOfOther => {
                Some("write kprobe:FILE:LINE or kprobe:FUNCTION:inlined".to_owned())
            }
            SpecProblem::TooManyColons => {
                Some("write kprobe:MODULE:SYMBOL or kprobe:SYMBOL".to_owned())
            }
            SpecProblem::BadBuild(_) => Some(
                "write MODULE@DIGITS, with the first hexadecimal digits of the build-id".to_owned(),
            ),
            SpecProblem::AddressInModule => Some("leave the module out".to_owned()),
            SpecProblem::BadAddress(digits)
                if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
            {
                Some("addresses are written in hexadecimal: 0x…".to_owned())
            }
            SpecProblem::BadOffset(_) => {
                Some("an offset is a number of bytes, like +5 or +0x5".to_owned())
            }
            SpecProblem::OffsetFromAddress => Some("add it to the address".to_owned()),
            SpecProblem::TooLong(_)
            | SpecProblem::BadModule(_)
            | SpecProblem::BadAddress(_)
            | SpecProblem::BadCharacter(_)
            | SpecProblem::OffsetOfReturn
            | SpecProblem::FileOffsetOfReturn
            | SpecProblem::OffsetFromPattern
            | SpecProblem::BadProcess(_) => None,
        }
    }
}
