//! Steps a vCPU over an instruction in software.

mod cpu;
mod kernel_half;
mod next;
mod operands;
mod own_breakpoints;
mod pass;

pub use cpu::general_register;
pub use kernel_half::{KernelTables, KnowsTables};
pub use next::next_places;
pub use operands::read_operands;
pub use own_breakpoints::OwnBreakpoints;
pub use pass::{Passed, RFLAGS_RF, pass};
