//! What happens when a vCPU stands at a plant: it is looked up, and the vCPU is brought past it.

mod cpu;
mod pass;
mod table;

pub(crate) use pass::{Passed, pass};
pub(crate) use table::{DebugRegisters, DebugUse, Plant, Table, own_instruction};
