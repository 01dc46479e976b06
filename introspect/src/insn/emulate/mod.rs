//! Emulation of an instruction, without running the instruction on hardware.
//!
//! One file per family of instructions. Each file reads the processor through [`effects::Effects`],
//! which holds back every change until the instruction is sure to complete. The commit writes
//! memory first (an instruction writes at most once), and registers only after a successful write.
//! An instruction therefore takes effect entirely or not at all.

mod arith;
mod bits;
mod branch;
mod data;
mod effects;
mod engine;
mod family;
mod flag_changes;
mod flags;
mod interrupts;
mod logic;
mod multiply;
mod operand;
mod register_changes;
mod segment;
mod shift;
mod stack;
mod status;
mod string;
mod transfer;
mod width;

pub use engine::{Outcome, emulate, emulate_decoded};
pub(super) use family::Family;
