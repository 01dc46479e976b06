//! Decoding, classifying and emulating instructions, on a processor made of arrays.

mod boundaries;
mod classes;
mod effects;
mod flow;
mod machine;
mod next;
mod properties;
mod stack;
mod status;
mod system;
mod transfer;
mod values;

use hyprobe_introspect::Gva;
use hyprobe_introspect::insn::{Decoded, Gpr, Outcome, decode, emulate};
use machine::{Machine, Region};

const CODE: u64 = 0xffff_ffff_8100_0000;
const DATA: u64 = 0xffff_8880_0000_1000;
const DATA_BYTES: usize = 0x200;
/// In the middle of the data.
const STACK: u64 = DATA + 0x100;

/// The instruction with the bytes `hex`, after a check that `text` is the instruction.
fn assembled(text: &str, hex: &str) -> Decoded {
    let bytes: Vec<u8> = hex
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
        .collect();
    let decoded = decode(&bytes, Gva(CODE)).expect("an instruction");
    assert_eq!(
        decoded.len(),
        bytes.len(),
        "{text} is longer than its instruction"
    );
    assert_eq!(decoded.text(), text);
    decoded
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

impl Machine {
    fn with(mut self, register: Gpr, value: u64) -> Self {
        self.gprs[register.number()] = value;
        self
    }

    fn with_flags(mut self, flags: u64) -> Self {
        self.rflags = 0x202 | flags;
        self
    }

    fn holding(mut self, at: u64, value: u64) -> Self {
        self.put(at, &value.to_le_bytes());
        self
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let offset = usize::try_from(at - DATA).expect("in the data");
        self.memory[0].bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn gpr(&self, register: Gpr) -> u64 {
        self.gprs[register.number()]
    }

    fn quadword(&self, at: u64) -> u64 {
        let offset = usize::try_from(at - DATA).expect("in the data");
        let bytes = &self.memory[0].bytes[offset..offset + 8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// The machine after an instruction; the instruction must complete.
    fn after(mut self, text: &str, hex: &str) -> Self {
        let decoded = assembled(text, hex);
        assert_eq!(emulate(&mut self, decoded.bytes()), Outcome::Done, "{text}");
        self
    }

    /// The outcome of an incomplete instruction; checks that the instruction changes nothing.
    fn refused(mut self, text: &str, hex: &str) -> Outcome {
        let decoded = assembled(text, hex);
        let before = self.clone();
        let outcome = emulate(&mut self, decoded.bytes());
        assert_ne!(outcome, Outcome::Done, "{text}");
        assert_eq!(
            self, before,
            "{text} changed something and was then refused"
        );
        outcome
    }
}
