//! The reasons why data cannot be watched.

use address::Gva;
use manifest::MAX_WATCHED_BYTES;

/// The problem with a watchpoint.
#[derive(Debug, thiserror::Error)]
pub enum WatchProblem {
    /// The kernel has no variable of the name.
    #[error("the kernel has no variable `{name}`")]
    NoVariable {
        /// The name.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The module has no variable of the name.
    #[error("the module {module} has no variable `{name}`")]
    NoVariableInModule {
        /// The module.
        module: String,
        /// The name.
        name: String,
    },
    /// The module has several variables of the name, whose addresses are others in each load.
    #[error("the module {module} has several variables called `{name}`")]
    AmbiguousInModule {
        /// The module.
        module: String,
        /// The name.
        name: String,
    },
    /// Several variables have the name.
    #[error("the kernel has {} variables called `{name}`", addresses.len())]
    Ambiguous {
        /// The name.
        name: String,
        /// The run-time addresses of the variables.
        addresses: Vec<Gva>,
    },
    /// The variable's type is not known.
    #[error("the type of `{name}` is not known")]
    Untyped {
        /// The variable.
        name: String,
    },
    /// The variable has no such member.
    #[error("`{variable}` has no member `{path}`")]
    NoMember {
        /// The variable.
        variable: String,
        /// The path behind the first dot.
        path: String,
    },
    /// The data has a size that is not watched as a whole.
    #[error("it has {bytes} bytes, and a watchpoint has 1 to {MAX_WATCHED_BYTES}")]
    Size {
        /// The size in bytes.
        bytes: u64,
    },
    /// The offset and the length leave the variable.
    #[error("its bytes are not all in `{name}`, which has {size} bytes")]
    Outside {
        /// The variable or member.
        name: String,
        /// Its size in bytes.
        size: u64,
    },
    /// An address of the initial values of per-CPU variables.
    #[error(
        "{at} is in the section of per-CPU variables, which the kernel has copied for each processor"
    )]
    PerCpuAddress {
        /// The run-time address.
        at: Gva,
    },
    /// A per-CPU variable of a kernel without copies, or whose copies are not known.
    #[error(
        "it is a per-CPU variable, and the kernel has no symbol `{table}`, which says where the processors' copies are"
    )]
    NoCopies {
        /// The symbol.
        table: &'static str,
    },
    /// The bytes are not within the section of per-CPU variables.
    #[error("{at} and the bytes behind it are not all per-CPU variables")]
    BesidePerCpu {
        /// The link-time address.
        at: Gva,
    },
    /// The kernel's types do not describe tasks.
    #[error("the kernel's types do not describe tasks: {why}")]
    NoTasks {
        /// The reason.
        why: String,
    },
    /// Reads of a task.
    #[error(
        "the processor's state in the struct of a task is read by instructions whose operand has no known length, so reads of tasks are not watched"
    )]
    ReadsOfTask,
    /// A KVM that emulates ring 0 cannot emulate all writes to tasks.
    #[error(
        "this host's KVM interprets the guest's kernel, and cannot execute some instructions that write to the struct of a task: use a host with VT-x or SVM, or --accel nested"
    )]
    Interpreted,
    /// Bytes that a debug register cannot watch.
    #[error(
        "a debug register watches 1, 2, 4 or 8 bytes at a multiple of their number, and not {bytes} bytes at {at}"
    )]
    NotInRegister {
        /// The link-time address, or the offset in a task.
        at: Gva,
        /// The number of bytes.
        bytes: usize,
    },
    /// A host without debug registers for data.
    #[error("debug registers for data do not work on this host")]
    NoRegisters,
    /// The level `registers`.
    #[error("at the level `registers`, the debug registers belong to the probes at instructions")]
    RegistersForInstructions,
    /// The bytes are outside of the kernel's data.
    #[error("{at} is not in the data of the kernel's image, whose pages alone can be protected")]
    NotData {
        /// The run-time address.
        at: Gva,
    },
    /// The bytes are code.
    #[error("it is code, and the writes to code are not watched")]
    Code,
    /// The page of the bytes also has code.
    #[error("its page also has code, and writes to such a page are not watched")]
    CodePage,
    /// The kernel frees the bytes while or after the kernel boots.
    #[error("the kernel frees it after boot, and uses its memory for other data")]
    Freed,
    /// The bytes are in the `.brk` area.
    #[error(
        "{at} is behind the end of the kernel's data (`__bss_stop`), where the kernel has page tables and memory that it frees"
    )]
    BehindData {
        /// The run-time address.
        at: Gva,
    },
    /// The page cannot be protected.
    #[error(
        "its page holds `{object}`, which the processor or KVM writes without an instruction of the guest"
    )]
    WrittenByHardware {
        /// The object.
        object: String,
    },
    /// The processor's own reads of the page would exit.
    #[error(
        "its page holds `{object}`, which the processor reads without an instruction of the guest"
    )]
    ReadByHardware {
        /// The object.
        object: String,
    },
    /// Too many words in all.
    #[error("with it, the watchpoints have more than {most} words")]
    TooManyWords {
        /// The limit.
        most: usize,
    },
    /// A program's handler at a watchpoint.
    #[error("a watchpoint has events, counts or aggregates, and no handlers")]
    Handler,
}

/// The remedy for data that this version does not watch.
const BY_FUNCTION: &str = "write kprobe:FUNCTION for a function that writes it";
const LIST: &str = "`hyprobe symbols --kernel FILE PATTERN` lists the symbols";

impl WatchProblem {
    /// The problem with run-time addresses in place of link-time addresses. The kernel has moved by `slide`.
    pub(super) fn at_run_time(self, slide: i64) -> Self {
        let moved = |at: Gva| at.wrapping_add(slide.cast_unsigned());
        match self {
            Self::Ambiguous { name, addresses } => Self::Ambiguous {
                name,
                addresses: addresses.into_iter().map(moved).collect(),
            },
            Self::NotData { at } => Self::NotData { at: moved(at) },
            Self::NotInRegister { at, bytes } => Self::NotInRegister {
                at: moved(at),
                bytes,
            },
            Self::BehindData { at } => Self::BehindData { at: moved(at) },
            Self::PerCpuAddress { at } => Self::PerCpuAddress { at: moved(at) },
            other => other,
        }
    }

    /// The remedy.
    pub(super) fn help(&self) -> Option<String> {
        match self {
            Self::NoVariable { near, .. } if !near.is_empty() => {
                Some(format!("near names: {}", near.join(", ")))
            }
            Self::NoVariableInModule { .. } | Self::AmbiguousInModule { .. } => None,
            Self::NoVariable { .. } => Some(LIST.to_owned()),
            Self::NotData { at } if at.0 >> 63 == 1 => Some(format!(
                "write watch:{at}:8:hw for writes to any memory of the kernel, by a debug register; {LIST}"
            )),
            Self::NotData { .. } => Some(LIST.to_owned()),
            Self::NotInRegister { .. } => Some(
                "watch a part, like watch:NAME+OFFSET:8:hw; or leave out `hw`: a page has no such limit"
                    .to_owned(),
            ),
            Self::NoRegisters | Self::RegistersForInstructions => {
                Some("leave out `hw`: the page of the data is protected then".to_owned())
            }
            Self::NoMember { .. } => {
                Some("`hyprobe types TYPE` prints the members of a type".to_owned())
            }
            Self::Outside { size, .. } => Some(format!(
                "write an offset and a length that end at byte {size} or before, or watch:0xADDRESS:LENGTH for other bytes"
            )),
            Self::Ambiguous { addresses, .. } => {
                let all: Vec<String> = addresses
                    .iter()
                    .map(|address| format!("watch:{address}:LENGTH"))
                    .collect();
                Some(format!("name one by its address: {}", all.join(", ")))
            }
            Self::Untyped { name } => {
                Some(format!("write its length in bytes, like watch:{name}:8"))
            }
            Self::Size { .. } => Some(
                "name a member, or write an offset and a length: watch:NAME+OFFSET:8".to_owned(),
            ),
            Self::Code => Some("write kprobe:SYMBOL for its executions".to_owned()),
            Self::PerCpuAddress { .. } => {
                Some("write watch:NAME:LENGTH, for the copies of all processors".to_owned())
            }
            Self::NoCopies { .. }
            | Self::BesidePerCpu { .. }
            | Self::NoTasks { .. }
            | Self::CodePage
            | Self::Freed
            | Self::BehindData { .. }
            | Self::WrittenByHardware { .. } => Some(BY_FUNCTION.to_owned()),
            Self::Interpreted => None,
            Self::ReadByHardware { .. } | Self::ReadsOfTask => {
                Some("watch the writes alone: leave out `r`, or write `w`".to_owned())
            }
            Self::TooManyWords { .. } => {
                Some("remove watchpoints, or watch fewer bytes: a word has 8".to_owned())
            }
            Self::Handler => Some(
                "give the watchpoint to the engine without a handler, and read its events"
                    .to_owned(),
            ),
        }
    }
}
