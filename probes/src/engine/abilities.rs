//! The host's abilities.

use introspect::insn::{CpuidWords, Features};
use manifest::Stealth;
use text::PlantByte;

/// The host's abilities that the engine uses, the choices among them, and the features of the guest's processor.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// The byte of a plant.
    pub plant: PlantByte,
    /// The guest's accesses to probed kernel code that find the guest's own bytes.
    pub stealth: Stealth,
    /// Execution breakpoints in debug registers stop the guest's kernel.
    pub debug_execute: bool,
    /// Debug registers stop the guest's kernel behind a write to data.
    pub debug_writes: bool,
    /// An execution breakpoint fires before the vCPU exits at a hidden page.
    pub breakpoint_before_fetch: bool,
    /// An `int3` of the guest's kernel exits, if requested.
    pub int3_exits: bool,
    /// An `int3` of the guest's kernel goes to the guest's own handler, unless an exit is requested.
    pub int3_to_guest: bool,
    /// KVM interprets the guest's kernel, and the processor executes programs.
    pub interprets: bool,
    /// Interrupts can be held back while one vCPU runs alone.
    pub holds_interrupts: bool,
    /// The features of the guest's processor.
    pub features: Features,
    /// The same features as CPUID words: they decide whether a copy of an instruction may run.
    pub cpuid: CpuidWords,
}
