//! What a run tells: one JSON object a line, the same wherever it is read.
//!
//! The command prints them, the nested launcher passes them through, CI reads them. Addresses are strings in hex:
//! JSON numbers are not exact beyond 2^53.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use introspect::Gva;
use serde::{Deserialize, Serialize};

use crate::program::AggregateResult;

/// A 64-bit value that JSON shows as `"0x…"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hex(pub u64);

impl From<Gva> for Hex {
    fn from(address: Gva) -> Self {
        Self(address.0)
    }
}

impl std::fmt::Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.strip_prefix("0x")
            // The conversion would take a sign.
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .map(Self)
            .ok_or_else(|| {
                serde::de::Error::custom(format!("`{text}` is not a hexadecimal number like 0x1f"))
            })
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Hex {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .pattern(Some("^0x0*[0-9a-fA-F]{1,16}$"))
            .description(Some("A 64-bit value in hexadecimal."))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Hex {}

/// One line of a run's output.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Event {
    /// A probe fired.
    Hit(Hit),
    /// A probed function returned.
    Return(Return),
    /// A probe's state changed, or the run has something to say.
    Note(Note),
    /// The end of the run; always the last line.
    Summary(Summary),
}

/// A probe fired.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// The probe, as it was asked for; one that a glob stands for is named by itself.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub probe: Arc<str>,
    /// Nanoseconds since the guest's first instruction, by the host's monotonic clock.
    pub ts_ns: u64,
    /// Which vCPU, from 0.
    pub vcpu: usize,
    /// Address of the probed instruction.
    pub ip: Hex,
    /// The same as `symbol+0xoffset`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub symbol: Arc<str>,
    /// The registers as they were when the instruction was about to be executed.
    pub regs: Registers,
    /// rdi, rsi, rdx, rcx, r8, r9: a function's arguments, at its entry.
    pub args: [Hex; 6],
}

/// A probed function returned.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Return {
    /// The probe, as it was asked for; one that a glob stands for is named by itself.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub probe: Arc<str>,
    /// Nanoseconds since the guest's first instruction, by the host's monotonic clock.
    pub ts_ns: u64,
    /// Nanoseconds since the call.
    pub took_ns: u64,
    /// Which vCPU, from 0.
    pub vcpu: usize,
    /// Where it returned to.
    pub ip: Hex,
    /// The function, as `symbol+0xoffset`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub symbol: Arc<str>,
    /// RAX.
    pub retval: Hex,
    /// The registers after the return.
    pub regs: Registers,
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

/// Something to know about a run that is no hit.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Nanoseconds since the guest's first instruction.
    pub ts_ns: u64,
    /// The probe that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub probe: Option<String>,
    /// A sentence.
    pub text: String,
}

/// How the guest ended.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestEnd {
    /// ACPI power-off.
    Poweroff,
    /// Reset without a panic before it.
    Reset,
    /// The kernel panicked.
    Panic,
    /// A vCPU triple-faulted.
    TripleFault,
    /// All vCPUs halted for ever.
    Halted,
    /// `--timeout` passed.
    Timeout,
    /// Stopped by the user or by a probe.
    Stopped,
    /// The test device was given this code.
    Exit,
    /// hyprobe or KVM could not go on; the error says why.
    Failed,
}

/// How the guest ended, and what is known of why.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSummary {
    /// See [`GuestEnd`].
    pub end: GuestEnd,
    /// The panic's message, the exit code, the error.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// For a panic: who, where, and by which way.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub crash: Option<Box<Crash>>,
}

/// A panic of the guest's kernel, at the entry of its `panic`.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Which vCPU, from 0.
    pub vcpu: usize,
    /// The name of the task, if it could be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task: Option<String>,
    /// Its registers.
    pub regs: Registers,
    /// The return addresses on the stack, the last call first. Some may be left from calls that are over.
    pub frames: Vec<Frame>,
}

/// A return address on a stack.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The address.
    pub ip: Hex,
    /// The same as `symbol+0xoffset`.
    pub symbol: String,
}

/// How hits get past the probed instruction.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// By a jump to a detour, which counts or leaves a record: no exit at all. Hits before the jump was put there took one
    /// each.
    Optimised,
    /// Executed by hyprobe: one exit a hit.
    Emulated,
    /// Executed from a copy elsewhere: one exit a hit.
    Relocated,
    /// Executed in place with the other vCPUs paused.
    Stepped,
}

/// Where a probe is in its life.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeState {
    /// Planted: fires.
    Armed,
    /// Waits for its text to appear.
    Pending,
    /// Planted nowhere, by request.
    Disabled,
    /// Its text is gone (an init function after boot, an unloaded module).
    Gone,
    /// Cannot be planted; a note has said why.
    Refused,
}

/// What became of one probe.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSummary {
    /// The probe, as it was asked for; one that a glob stands for is named by itself.
    pub probe: String,
    /// Where it is, if that was found out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ip: Option<Hex>,
    /// Hits that were handled. One that the filter turns away is none.
    pub hits: u64,
    /// Hits that were not, by reason; empty when none was missed.
    pub missed: BTreeMap<String, u64>,
    /// How hits get past it; absent while none has.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tier: Option<Tier>,
    /// VM exits that it took: for its hits, and for what its filter turned away.
    pub exits: u64,
    /// For a return probe: returns that were handled. Hits are its entries: hits = returns + in flight + missed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub returns: Option<u64>,
    /// For a return probe: calls that had not returned when the run ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_flight: Option<u64>,
    /// See [`ProbeState`].
    pub state: ProbeState,
    /// Why it was refused, or is pending.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// For a probe that counts or traces: why its hits exit all the same. Absent while nobody has looked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unoptimised: Option<String>,
    /// Its filter, as a program is written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub filter: Option<String>,
    /// For a probe with an aggregate: what it has come to.
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
    /// Events that were recorded but could not be written (0 unless the output failed).
    pub dropped: u64,
    /// Starts of QEMU before the guest's first instruction that came to nothing, each with its reason. Only nested runs have any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub restarts: Vec<String>,
}

/// Receives events in the order of their recording.
///
/// A sink that writes to something slow keeps a queue. While [`has_room`](Self::has_room) is false, no vCPU enters the guest, and
/// records stay in the ring; pauses, probe changes and the end of the run go on. So the queue grows beyond its room only by
/// what is under way: the hits of one exit of each vCPU, a ring of records, and the notes of changes.
pub trait EventSink: Send + Sync + std::fmt::Debug {
    /// Takes one event. Called on vCPU threads, and on every thread that takes out records or changes probes, with the engine's
    /// locks held: must be quick, must not wait for room, for the guest or for a pause, and must not call the engine.
    fn event(&self, event: Event);

    /// Whether there is room for more events. Called before each entry to the guest. A sink that passes events on to another
    /// passes this on, too.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits for room, at most for `limit`. Called on vCPU threads without locks.
    fn await_room(&self, limit: Duration) {
        let _ = limit;
    }
}
