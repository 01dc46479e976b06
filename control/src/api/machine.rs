//! The machine, and what pauses it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// It does.
    Running,
    /// It stands, by request.
    Paused,
    /// It has ended or is about to.
    Ending,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Machine {
    /// Whether the guest runs.
    pub state: MachineState,
    /// `kvm` or `nested`.
    pub accel: String,
    /// Number of vCPUs.
    pub cpus: u64,
    /// RAM.
    pub memory_bytes: u64,
    /// The kernel's version line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kernel: Option<String>,
    /// How far the kernel has moved from where it was linked, in bytes; absent until it has said where it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub slide: Option<i64>,
    /// Nanoseconds since the guest's first instruction, pauses included.
    pub ts_ns: u64,
    /// Number of probes.
    pub probes: u64,
    /// Hits of all of them.
    pub hits: u64,
    /// Pauses for changes, since the beginning of the run.
    pub pauses: PauseStats,
    /// The sequence number that the next event will have.
    pub next_event: u64,
    /// That of the oldest event that can still be had.
    pub oldest_event: u64,
    /// Connections to the control socket.
    pub connections: u64,
    /// hyprobe's own version.
    pub version: String,
}

/// What a change cost the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pause {
    /// From the wish to the moment when every vCPU stood, nanoseconds. The vCPUs run during most of it.
    pub wait_ns: u64,
    /// How long all of them stood, nanoseconds; 0 if the machine was paused anyway, or need not be.
    pub held_ns: u64,
}

/// Pauses for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseStats {
    /// How many.
    pub count: u64,
    /// How long the vCPUs stood altogether, nanoseconds.
    pub held_total_ns: u64,
    /// The longest, nanoseconds.
    pub held_max_ns: u64,
    /// The longest wait, nanoseconds.
    pub wait_max_ns: u64,
    /// The last one.
    pub last: Pause,
}
