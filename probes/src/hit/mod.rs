//! What happens when a vCPU stands at a plant: it is looked up, and the vCPU is brought past it.

mod cpu;
mod kernel_half;
mod next;
mod pass;
mod table;

pub(crate) use kernel_half::{KernelTables, KnowsTables};
pub(crate) use next::next_places;
pub(crate) use pass::{Passed, RFLAGS_RF, pass};
pub(crate) use table::{DebugRegisters, DebugUse, Plant, Table, own_instruction};
