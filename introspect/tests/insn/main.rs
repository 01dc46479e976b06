//! Decoding, classifying and emulating instructions, on a processor made of arrays.

mod boundaries;
mod classes;
mod effects;
mod flow;
mod next;
mod operands;
mod properties;
mod stack;
mod status;
mod system;
mod transfer;
mod values;

use address::Gva;
use hyprobe_introspect::insn::{Decoded, Gpr};
use reference::{Machine, Region};

const CODE: u64 = 0xffff_ffff_8100_0000;
const DATA: u64 = 0xffff_8880_0000_1000;
const DATA_BYTES: usize = 0x200;
/// In the middle of the data.
const STACK: u64 = DATA + 0x100;

/// The instruction with the bytes `hex`, after a check that `text` is the instruction.
fn assembled(text: &str, hex: &str) -> Decoded {
    reference::assembled(text, hex, Gva(CODE))
}

/// A kernel's processor: privilege level 0, a stack in the data, interrupts on.
fn kernel() -> Machine {
    let data = Region {
        start: DATA,
        bytes: vec![0; DATA_BYTES],
        writable: true,
    };
    let mut machine = Machine::new(CODE, vec![data]);
    machine.privilege_level = 0;
    machine.gprs[Gpr::Rsp.number()] = STACK;
    machine
}
