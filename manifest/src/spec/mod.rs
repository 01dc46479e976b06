//! Probe specifications, as users write them: `kprobe:vfs_read+0x5`.
//!
//! ```text
//! kprobe:SYMBOL           kprobe:vfs_read
//! kprobe:SYMBOL+OFFSET    kprobe:vfs_read+0x5    kprobe:vfs_read+5
//! kprobe:PATTERN          kprobe:vfs_*           every function that matches; * ? [a-z]
//! kprobe:ADDRESS          kprobe:0xffffffff81234567
//! kprobe:MODULE:SYMBOL    and so with an offset, a pattern, a line or inlined copies; kprobe:MODULE@BUILD:SYMBOL: in this build
//! kprobe:FILE:LINE        kprobe:fs/read_write.c:450   every place with code of the line
//! kprobe:FUNCTION:inlined kprobe:rw_verify_area:inlined   every inlined copy
//! syscall:NAME            syscall:openat         syscall:*read*
//! tracepoint:GROUP:NAME   tracepoint:sched:sched_switch
//! watch:VARIABLE          watch:jiffies          watch:init_task.flags
//! watch:VARIABLE:LENGTH   watch:panic_timeout:4  watch:panic_timeout+2:2
//! watch:ADDRESS:LENGTH    watch:0xffffffff82a0c0a8:8   and so with :w behind the length
//! watch:MODULE:VARIABLE:LENGTH   watch:sch_htb:htb_hysteresis:4
//! uprobe:PATH:SYMBOL      uprobe:/bin/busybox:main     and so with an offset
//! uprobe:PATH:OFFSET      uprobe:/bin/busybox:0x1180   an offset in the file
//! usdt:PATH:PROVIDER:NAME usdt:/usr/bin/python3.11:python:function__entry   each may be a pattern
//! ```
//!
//! `kretprobe:` and `retsyscall:` are the returns of functions and system calls.
//!
//! The parser does not check whether a symbol exists: the answer depends on the guest. Lines and inlined copies are known to debug
//! information only: the command replaces them by symbols with offsets, before the engine sees the probes.

mod error;
mod module;
mod names;
mod parse;
mod piece;
mod program_code;
mod watched;

use std::fmt;
use std::str::FromStr;

use address::Gva;
use serde::{Deserialize, Serialize};

pub use error::{SpecError, SpecProblem};
pub use module::ModuleSpec;
pub use program_code::{FilePlace, MarkNames, ProgramCode};
pub use watched::{DataBase, MAX_WATCHED_BYTES, WatchedAccess, WatchedData};

/// Kind of the probe.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Kind))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// Before the instruction at a kernel address is executed.
    Kprobe,
    /// When a kernel function has returned.
    Kretprobe,
    /// At the entry of a system call, with the arguments of the program that makes the call.
    Syscall,
    /// When a system call has returned to the kernel's entry code.
    Retsyscall,
    /// Where the kernel passes a tracepoint, on or off.
    Tracepoint,
    /// At each write of the guest to data of the kernel.
    Watch,
    /// At an instruction of a file that programs map.
    Uprobe,
    /// When a function of a file that programs map has returned.
    Uretprobe,
    /// At the places of a file that programs map which the file's authors have marked.
    Usdt,
}

impl ProbeKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Kprobe,
        Self::Kretprobe,
        Self::Syscall,
        Self::Retsyscall,
        Self::Tracepoint,
        Self::Watch,
        Self::Uprobe,
        Self::Uretprobe,
        Self::Usdt,
    ];

    /// The word before the first colon.
    #[must_use]
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Kprobe => "kprobe",
            Self::Kretprobe => "kretprobe",
            Self::Syscall => "syscall",
            Self::Retsyscall => "retsyscall",
            Self::Tracepoint => "tracepoint",
            Self::Watch => "watch",
            Self::Uprobe => "uprobe",
            Self::Uretprobe => "uretprobe",
            Self::Usdt => "usdt",
        }
    }

    /// Whether a probe of the kind follows calls to their return.
    #[must_use]
    pub const fn is_return(self) -> bool {
        matches!(self, Self::Kretprobe | Self::Retsyscall | Self::Uretprobe)
    }

    /// Whether a probe of the kind is in programs.
    #[must_use]
    pub const fn is_in_programs(self) -> bool {
        matches!(self, Self::Uprobe | Self::Uretprobe | Self::Usdt)
    }

    /// Whether a probe of the kind is about a system call.
    #[must_use]
    pub const fn is_syscall(self) -> bool {
        matches!(self, Self::Syscall | Self::Retsyscall)
    }

    /// The kind for system calls, at the same end of a call.
    #[must_use]
    pub const fn of_syscall(self) -> Self {
        if self.is_return() {
            Self::Retsyscall
        } else {
            Self::Syscall
        }
    }

    /// The kind for returns from the same functions or system calls; `None` for the kinds without a return.
    #[must_use]
    pub const fn at_return(self) -> Option<Self> {
        match self {
            Self::Kprobe | Self::Kretprobe => Some(Self::Kretprobe),
            Self::Syscall | Self::Retsyscall => Some(Self::Retsyscall),
            Self::Uprobe | Self::Uretprobe => Some(Self::Uretprobe),
            Self::Tracepoint | Self::Watch | Self::Usdt => None,
        }
    }
}

/// The word behind a function for its inlined copies.
const INLINED: &str = "inlined";

/// The location of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An offset in a function; a system call, without an offset.
    Symbol {
        /// The name of the symbol or system call; of a tracepoint `GROUP:NAME`.
        name: String,
        /// The offset from the symbol's address, bytes.
        offset: u64,
    },
    /// A run-time address of the guest, KASLR's offset included.
    Address(Gva),
    /// The beginning of every function, or every system call or tracepoint, whose name matches.
    Glob(String),
    /// Every place with code of a source line.
    Line {
        /// The end of the source file's path, in whole components; has a dot.
        file: String,
        /// The line, from 1 on.
        line: u64,
    },
    /// Every inlined copy of the function.
    Inlined(String),
    /// The data of a watchpoint.
    Data(WatchedData),
    /// An instruction in a file that programs map.
    Program(ProgramCode),
}

impl Location {
    /// Whether the location is a run-time address, which has no meaning before the kernel has been located.
    #[must_use]
    pub const fn is_address(&self) -> bool {
        matches!(
            self,
            Self::Address(_)
                | Self::Data(WatchedData {
                    base: DataBase::Address(_),
                    ..
                })
        )
    }

    /// Whether the location is known to debug information only.
    #[must_use]
    pub const fn needs_debug_info(&self) -> bool {
        matches!(self, Self::Line { .. } | Self::Inlined(_))
    }
}

/// A probe, or a pattern for several probes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeSpec {
    /// The kind.
    pub kind: ProbeKind,
    /// The module with the symbol; without a module, any symbol of the name matches. Always `None` for an address.
    pub module: Option<ModuleSpec>,
    /// The location.
    pub location: Location,
}

impl FromStr for ProbeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        parse::parse(text)
    }
}

/// Prints the text that parses to the same probe.
impl fmt::Display for ProbeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind.keyword())?;
        if let Some(module) = &self.module {
            write!(f, "{module}:")?;
        }
        match &self.location {
            Location::Symbol { name, offset: 0 } => f.write_str(name),
            Location::Symbol { name, offset } => write!(f, "{name}+{offset:#x}"),
            Location::Address(address) => write!(f, "{address}"),
            Location::Glob(pattern) => f.write_str(pattern),
            Location::Line { file, line } => write!(f, "{file}:{line}"),
            Location::Inlined(function) => write!(f, "{function}:{INLINED}"),
            Location::Data(data) => write!(f, "{data}"),
            Location::Program(code) => write!(f, "{code}"),
        }
    }
}

impl Serialize for ProbeSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProbeSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
