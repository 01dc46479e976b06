//! The machine and its pauses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// The guest runs.
    Running,
    /// The guest is paused by request.
    Paused,
    /// The guest has ended or is about to end.
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
    /// Size of RAM in bytes.
    pub memory_bytes: u64,
    /// The kernel's version line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kernel: Option<String>,
    /// The build-id of the kernel's file in hexadecimal digits; absent if the kernel has none. A file with the kernel's debug information
    /// has the same.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub build_id: Option<String>,
    /// Distance from the kernel's linked address to the running address, in bytes; absent until the kernel reports the running address.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub slide: Option<i64>,
    /// Nanoseconds since the guest's first instruction, pauses included.
    pub ts_ns: u64,
    /// Number of probes.
    pub probes: u64,
    /// Number of hits of all probes.
    pub hits: u64,
    /// Pauses for changes since the beginning of the run.
    pub pauses: PauseStats,
    /// Sequence number of the next event.
    pub next_event: u64,
    /// Sequence number of the oldest retained event.
    pub oldest_event: u64,
    /// Number of connections to the control socket.
    pub connections: u64,
    /// hyprobe's own version.
    pub version: String,
}

/// Pause of the guest for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pause {
    /// Time from the request of the pause to the moment when every vCPU is paused, in nanoseconds. The vCPUs run during most of the time.
    pub wait_ns: u64,
    /// Time with all vCPUs paused, in nanoseconds; 0 if the machine was paused already, or if the request needs no pause.
    pub held_ns: u64,
}

/// Pauses for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseStats {
    /// Number of pauses.
    pub count: u64,
    /// Total time with all vCPUs paused, in nanoseconds.
    pub held_total_ns: u64,
    /// The longest time with all vCPUs paused, in nanoseconds.
    pub held_max_ns: u64,
    /// The longest wait for a pause, in nanoseconds.
    pub wait_max_ns: u64,
    /// The last pause.
    pub last: Pause,
}
