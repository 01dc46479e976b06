//! The traces of probes: what a guest finds that looks for probes, for each kind of probe and each level.
//!
//! The cases `looks-…` of the rigs compare [`is_seen`] with a guest that looks, on each kind of KVM. `hyprobe doctor --stealth` prints the table.

mod look;
mod table;

use manifest::Stealth;

pub use look::{LOOKS, Look, Looker};
pub use table::{columns, table};

/// All levels, in the order of the table.
pub const LEVELS: [Stealth; 3] = [Stealth::Writes, Stealth::Registers, Stealth::Reads];

/// The kinds of probes that leave different traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A probe at an instruction: each hit exits.
    Kprobe,
    /// The same, with a jump to a detour: hits do not exit.
    Jump,
    /// A return probe.
    Kretprobe,
    /// A watchpoint.
    Watch,
}

/// All kinds, in the order of the table.
pub const KINDS: [Kind; 4] = [Kind::Kprobe, Kind::Jump, Kind::Kretprobe, Kind::Watch];

impl Kind {
    /// The words for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Kprobe => "kprobe",
            Self::Jump => "optimised",
            Self::Kretprobe => "kretprobe",
            Self::Watch => "watch",
        }
    }

    /// Whether probes of this kind exist at the level.
    #[must_use]
    pub fn exists_at(self, level: Stealth) -> bool {
        match self {
            Self::Kprobe | Self::Watch => true,
            Self::Jump => level == Stealth::Writes,
            Self::Kretprobe => level != Stealth::Registers,
        }
    }
}

/// Whether a guest with probes of this kind finds another value than a guest without probes.
#[must_use]
pub fn is_seen(look: Look, kind: Kind, level: Stealth) -> bool {
    let changes_text = level == Stealth::Writes && kind != Kind::Watch;
    match look {
        Look::Text | Look::Alias | Look::Copy | Look::Vectors => changes_text,
        // The region of the detours: copies of instructions are there, too.
        Look::Tables | Look::Physical => changes_text,
        // The emulator executes the probed instruction, or the store to the watched data, and raises no data breakpoints. At the level `registers`,
        // hyprobe's breakpoints replace the guest's.
        Look::OwnWatchpoints => kind != Kind::Jump,
        // The processor's debug registers hold hyprobe's breakpoints in place of the guest's.
        Look::OwnBreakpoints => level == Stealth::Registers && kind != Kind::Watch,
        Look::Patched
        | Look::Registers
        | Look::ReturnAddress
        | Look::Frames
        | Look::DebugRegisters
        | Look::OwnInt3
        | Look::Gates
        | Look::Cpuid
        | Look::Msrs => false,
    }
}
