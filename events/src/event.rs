//! The events of a run: one JSON object a line, in every output.
//!
//! The command prints the events, the nested launcher passes them through, CI reads them. Addresses are strings in hex: JSON numbers are
//! not exact beyond 2^53.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use manifest::GuestEnd;
use manifest::program::AggregateResult;
use serde::{Deserialize, Serialize};

use crate::fields::Fields;
use crate::hex::Hex;
use crate::stack::{Frame, ProgramFrame, StackFrame, VcpuStack};
use crate::task::Task;
use crate::typed::{Param, Typed};

/// One line of a run's output.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Event {
    /// A probe fired.
    Hit(Hit),
    /// A probed function returned.
    Return(Return),
    /// A probe's state changed, or a remark about the run.
    Note(Note),
    /// The end of the run; always the last line.
    Summary(Summary),
}

impl Event {
    /// The time of the event in nanoseconds since the guest's first instruction; of the summary, the time of the guest's end.
    #[must_use]
    pub const fn ts_ns(&self) -> u64 {
        match self {
            Self::Hit(hit) => hit.ts_ns,
            Self::Return(ret) => ret.ts_ns,
            Self::Note(note) => note.ts_ns,
            Self::Summary(summary) => summary.ran_ns,
        }
    }
}

/// A probe fired.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// The probe as requested; a match of a glob has its own name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub probe: Arc<str>,
    /// Nanoseconds since the guest's first instruction, by the host's monotonic clock.
    pub ts_ns: u64,
    /// The number of the vCPU, from 0.
    pub vcpu: usize,
    /// Address of the probed instruction.
    pub ip: Hex,
    /// The address as `symbol+0xoffset`; of a mark in a program, `provider:name [path]`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub symbol: Arc<str>,
    /// The registers right before the instruction is executed.
    pub regs: Registers,
    /// rdi, rsi, rdx, rcx, r8, r9: a function's arguments, at its entry. At a mark in a program, the first six values of the mark, 0 for a value
    /// that is not known.
    pub args: [Hex; 6],
    /// For a watchpoint: the write. `ip` and `symbol` are those of the instruction that writes, or, if KVM has emulated the instruction
    /// (`regs` are those behind it then), of the instruction in front of RIP. If the processor writes the frame of an exception or interrupt,
    /// `ip` is that of the interrupted instruction, and `symbol` is `delivery of vector 0x…`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub write: Option<DataWrite>,
    /// For a watchpoint: the read. `ip`, `symbol` and `regs` are as for a write.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub read: Option<DataRead>,
    /// The task; absent if the kernel does not say where it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task: Option<Task>,
    /// At the entry of a function with known types: the parameters. At a source line: the variables. At a mark in a program: the values of the mark.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub params: Option<Vec<Param>>,
    /// At a tracepoint: the fields of the record that the guest's ftrace would write, by their names, in the order of the record.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fields: Option<Fields>,
    /// The number of followed calls around it on the same stack: of probes on returns, calls that have not returned. Absent if 0.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub depth: usize,
    /// For a probe with stacks: the kernel's stack, the innermost function first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stack: Option<Vec<StackFrame>>,
    /// The reason why the stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stack_incomplete: Option<String>,
    /// For a probe with stacks: the stack of the program that has called the kernel or was interrupted, the innermost function first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack: Option<Vec<ProgramFrame>>,
    /// The reason why the program's stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack_incomplete: Option<String>,
}

/// A write of the guest to watched data.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataWrite {
    /// Address of the watched bytes; those of a watchpoint with more than 8 bytes are words of up to 8.
    pub at: Hex,
    /// Number of the watchpoint's bytes in front of these.
    #[serde(skip_serializing_if = "is_first", default)]
    pub offset: u16,
    /// For a per-CPU variable: number of the processor, as the guest counts, whose copy it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub copy: Option<u16>,
    /// Number of watched bytes: 1 to 8.
    pub bytes: u8,
    /// The watched bytes before the write, as a number.
    pub old: Hex,
    /// The watched bytes after the write; equal to `old` if the write has stored the same value.
    pub new: Hex,
}

/// A read of watched data by the guest, without a write by the same instruction that is a hit of the watchpoint.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRead {
    /// Address of the watched bytes; those of a watchpoint with more than 8 bytes are words of up to 8.
    pub at: Hex,
    /// Number of the watchpoint's bytes in front of these.
    #[serde(skip_serializing_if = "is_first", default)]
    pub offset: u16,
    /// For a per-CPU variable: number of the processor, as the guest counts, whose copy it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub copy: Option<u16>,
    /// Number of watched bytes: 1 to 8.
    pub bytes: u8,
    /// The watched bytes, as a number.
    pub value: Hex,
}

/// A probed function returned.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Return {
    /// The probe as requested; a match of a glob has its own name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub probe: Arc<str>,
    /// Nanoseconds since the guest's first instruction, by the host's monotonic clock.
    pub ts_ns: u64,
    /// Nanoseconds since the call.
    pub took_ns: u64,
    /// The number of the vCPU, from 0.
    pub vcpu: usize,
    /// The return address.
    pub ip: Hex,
    /// The function, as `symbol+0xoffset`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub symbol: Arc<str>,
    /// RAX.
    pub retval: Hex,
    /// The registers after the return.
    pub regs: Registers,
    /// The task; absent if the kernel does not say where it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task: Option<Task>,
    /// For a function with known types that returns a value: the value.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub returned: Option<Typed>,
    /// The number of followed calls around it on the same stack: of probes on returns, calls that have not returned. Absent if 0.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub depth: usize,
    /// For a probe with stacks: the kernel's stack behind the return, the innermost function first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stack: Option<Vec<StackFrame>>,
    /// The reason why the stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stack_incomplete: Option<String>,
    /// For a probe with stacks: the stack of the program that has called the kernel or was interrupted, the innermost function first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack: Option<Vec<ProgramFrame>>,
    /// The reason why the program's stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack_incomplete: Option<String>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn is_first(offset: &u16) -> bool {
    *offset == 0
}

/// The general registers of a vCPU.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are what they are called")]
pub struct Registers {
    pub rax: Hex,
    pub rbx: Hex,
    pub rcx: Hex,
    pub rdx: Hex,
    pub rsi: Hex,
    pub rdi: Hex,
    pub rbp: Hex,
    pub rsp: Hex,
    pub r8: Hex,
    pub r9: Hex,
    pub r10: Hex,
    pub r11: Hex,
    pub r12: Hex,
    pub r13: Hex,
    pub r14: Hex,
    pub r15: Hex,
    pub rip: Hex,
    pub rflags: Hex,
}

impl Registers {
    /// rdi, rsi, rdx, rcx, r8, r9: where the System V ABI passes integer arguments.
    #[must_use]
    pub const fn arguments(&self) -> [Hex; 6] {
        [self.rdi, self.rsi, self.rdx, self.rcx, self.r8, self.r9]
    }
}

/// A remark about a run.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Nanoseconds since the guest's first instruction.
    pub ts_ns: u64,
    /// The probe concerned, if any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub probe: Option<String>,
    /// A sentence.
    pub text: String,
}

/// The end of the guest, and the known reasons.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSummary {
    /// See [`GuestEnd`].
    pub end: GuestEnd,
    /// The panic's message, the exit code, the error.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// For a panic: the vCPU, the task, the registers and the return addresses.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub crash: Option<Box<Crash>>,
    /// For a panic, a timeout, and vCPUs that halted for good: the stacks at the end.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub vcpus: Vec<VcpuStack>,
    /// At the same ends and for a triple fault: the end of the kernel's log, read from the kernel's memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub log: Option<Box<LogEnd>>,
}

/// The end of a kernel's log.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    /// Whole lines, as `dmesg` prints them: at most 32 KiB.
    pub text: String,
    /// The number of earlier lines that are left out.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub left_out: usize,
    /// The reason why there is no text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub missing: Option<String>,
}

/// A panic of the guest's kernel, at the entry of its `panic`.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// The number of the vCPU, from 0.
    pub vcpu: usize,
    /// The name of the task, if readable.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task: Option<String>,
    /// The vCPU's registers.
    pub regs: Registers,
    /// The callers of `panic`, the last call first. For a kernel without ORC tables, the return addresses on the stack, of which some may be
    /// remains of calls that have returned.
    pub frames: Vec<Frame>,
}

/// How hits step over the probed instruction.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Displaced by a jump or an `int3` to a detour, which counts or writes a record: no exit. Hits before the jump was written took one
    /// exit each.
    Optimised,
    /// Emulated by hyprobe: one exit a hit.
    Emulated,
    /// Executed from a copy in the detour region: one exit a hit.
    Relocated,
    /// Executed in place with the other vCPUs paused.
    Stepped,
}

/// The state of a probe.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeState {
    /// Planted: executions are hits.
    Armed,
    /// Waiting for the probe's text to appear.
    Pending,
    /// Not planted, by request.
    Disabled,
    /// The probe's text is gone (an init function after boot, an unloaded module).
    Gone,
    /// The probe cannot be planted; a note gives the reason.
    Refused,
}

/// The reason of a pending probe in a module that is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the module `{module}` is not loaded")]
pub struct NotLoaded {
    /// The module.
    pub module: String,
}

/// The reason of a pending watchpoint at data of a process that the guest has not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest has not started a process with the number {pid}")]
pub struct NotStarted {
    /// The number.
    pub pid: u32,
}

/// The reason of a pending probe at a tracepoint that neither the kernel proper nor a loaded module passes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no loaded module passes `{spec}`, and the kernel without its modules does not")]
pub struct AwaitsModule {
    /// The specification of the probe.
    pub spec: String,
}

/// The result of one probe.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSummary {
    /// The probe as requested; a match of a glob has its own name.
    pub probe: String,
    /// The probe's address, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ip: Option<Hex>,
    /// The number of handled hits, without executions rejected by the filter.
    pub hits: u64,
    /// The number of missed hits, by reason; empty if no hit was missed.
    pub missed: BTreeMap<String, u64>,
    /// How hits step over the instruction; absent before the first hit or jump.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tier: Option<Tier>,
    /// The number of VM exits for hits, for returns, and for executions rejected by the filter.
    pub exits: u64,
    /// For a return probe: the number of handled returns. Hits are calls: hits = returns + in flight + missed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub returns: Option<u64>,
    /// For a return probe: the number of calls in flight at the end of the run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_flight: Option<u64>,
    /// See [`ProbeState`].
    pub state: ProbeState,
    /// The reason for a refused or pending probe.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// For a probe whose hits a detour could handle: the reason why hits exit nevertheless. Absent before the engine has checked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unoptimised: Option<String>,
    /// The filter, in the syntax of programs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub filter: Option<String>,
    /// For a probe with an aggregate: the result.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub result: Option<AggregateResult>,
}

/// The end of a run.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// `kvm` or `nested`.
    pub accel: String,
    /// How the guest ended.
    pub guest: GuestSummary,
    /// Wall-clock time of the guest, nanoseconds.
    pub ran_ns: u64,
    /// Every probe, in the order in which they were asked for.
    pub probes: Vec<ProbeSummary>,
    /// The number of events recorded but not written (0 unless the output failed).
    pub dropped: u64,
    /// Failed starts of QEMU before the guest's first instruction, each with its reason. Only nested runs have any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub restarts: Vec<String>,
}

/// Receives events in the order of their recording.
///
/// A sink with a slow output keeps a queue. While [`has_room`](Self::has_room) is false, no vCPU enters the guest, and records stay in the
/// ring; pauses, probe changes and the end of the run go on. So the queue grows beyond its limit only by events under way: the hits of one
/// exit of each vCPU, a ring of records, and the notes of changes.
pub trait EventSink: Send + Sync + std::fmt::Debug {
    /// Takes one event. Called on vCPU threads, and on every thread that takes out records or changes probes, with the engine's locks held:
    /// must be quick, must not wait for room, for the guest or for a pause, and must not call the engine.
    fn event(&self, event: Event);

    /// Whether the sink has room for more events. Called before each entry to the guest. A sink that forwards events to another sink
    /// forwards this call, too.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits for room, at most for `limit`. Called on vCPU threads without locks.
    fn await_room(&self, limit: Duration) {
        let _ = limit;
    }
}
