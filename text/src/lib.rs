//! The guest's text as hyprobe reads and changes it: guest memory, plants, and the emulation of displaced instructions.
//!
//! This crate writes bytes, and does not know probes: the engine decides which bytes to plant, and why.

#![forbid(unsafe_code)]

mod addresses;
mod guest;
mod plant;
mod step_over;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

pub use addresses::{AddressHash, AddressMap};
pub use guest::{
    GuestError, GuestMemory, InstructionFault, KvmMemory, KvmVcpu, Paused, Ran, SystemState, To,
    Unwritable, Vcpu,
};
pub use plant::{
    Jump, Own, PageCopies, PlantByte, PlantError, Planter, RewrittenJumps, ShownAlone, Spot,
    Written,
};
pub use step_over::{
    KernelTables, KnowsTables, OwnBreakpoints, Passed, RFLAGS_RF, general_register, next_places,
    pass, read_operands,
};
