//! Hits: looks up the plant at a vCPU's RIP, and steps the vCPU over the displaced instruction.

mod cpu;
mod kernel_half;
mod next;
mod pass;
mod table;

pub(crate) use kernel_half::{KernelTables, KnowsTables};
pub(crate) use next::next_places;
pub(crate) use pass::{Passed, RFLAGS_RF, pass};
pub(crate) use table::{DebugRegisters, DebugUse, Plant, Table, own_instruction};
