//! Interprets code of the guest on a copy of a processor, with a memory of its own.
//!
//! The guest's processor, and the guest's memory, do not change: the registers are a copy, and writes go to [`Scratch`]. Instructions that reach
//! beyond registers and memory (ports, model-specific registers, interrupts, segments) are refused: [`Cpu`] has no default for them.

use address::Gva;
use thiserror::Error;

use super::calls::instruction;
use super::scratch::Scratch;
use crate::insn::{
    Access, Cpu, Decoded, Fault, Features, Gpr, Outcome, Reason, Segment, emulate_decoded,
};

/// The registers of a processor at the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The general registers, by [`Gpr::number`].
    pub gprs: [u64; 16],
    /// The flags.
    pub rflags: u64,
    /// The base of `gs`.
    pub gs: u64,
    /// Whether linear addresses have 57 bits.
    pub has_57_bits: bool,
    /// The instructions of the processor.
    pub features: Features,
}

/// Why an instruction cannot be interpreted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Uninterpreted {
    /// The code cannot be read, or holds no instruction.
    #[error("no instruction can be read at {at}")]
    NoCode {
        /// The address.
        at: Gva,
    },
    /// The emulator does not know the instruction.
    #[error("cannot emulate `{text}` at {at}: {reason:?}")]
    Unsupported {
        /// The address.
        at: Gva,
        /// The instruction.
        text: String,
        /// The reason. Part of the message.
        reason: Reason,
    },
    /// The code has read or written more than the interpreter allows.
    #[error("`{text}` at {at} accesses more memory than a record takes")]
    TooMuchMemory {
        /// The address.
        at: Gva,
        /// The instruction.
        text: String,
    },
    /// The instruction reaches beyond general registers and memory.
    #[error("`{text}` at {at} uses more than general registers and memory")]
    Beyond {
        /// The address.
        at: Gva,
        /// The instruction.
        text: String,
    },
    /// A memory access of the instruction is not possible.
    #[error("cannot emulate `{text}` at {at}: {fault}")]
    Fault {
        /// The address.
        at: Gva,
        /// The instruction.
        text: String,
        /// The fault. Part of the message.
        fault: Fault,
    },
}

/// A pointer that the guest's memory does not hold, and that reads as if it did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pretended {
    pub(super) at: Gva,
    pub(super) value: u64,
}

/// A copy of a processor.
pub(super) struct Interpreter<'r> {
    registers: Snapshot,
    rip: Gva,
    pretended: [Pretended; 2],
    memory: Scratch<'r>,
}

impl<'r> Interpreter<'r> {
    pub(super) fn new(
        registers: Snapshot,
        rip: Gva,
        pretended: [Pretended; 2],
        memory: Scratch<'r>,
    ) -> Self {
        Self {
            registers,
            rip,
            pretended,
            memory,
        }
    }

    pub(super) fn at(&self) -> Gva {
        self.rip
    }

    /// Decodes the next instruction.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(super) fn decode(&mut self) -> Result<Decoded, Uninterpreted> {
        let at = self.rip;
        let mut read = |at, bytes: &mut [u8]| self.memory.read_code(at, bytes);
        instruction(at, &mut read).ok_or(Uninterpreted::NoCode { at })
    }

    /// Whether the next instruction may be a call whose first byte the guest has replaced by an `int3` to change the call: as a call, the
    /// instruction would lead to readable memory.
    pub(super) fn is_patched_call(&mut self) -> bool {
        let mut distance = [0; 4];
        if !self
            .memory
            .read_code(self.rip.wrapping_add(1), &mut distance)
        {
            return false;
        }
        let distance = i64::from(i32::from_le_bytes(distance));
        let target = self.rip.wrapping_add(5).0.wrapping_add_signed(distance);
        self.memory.read_code(Gva(target), &mut [0])
    }

    /// Interprets an instruction that [`decode`](Self::decode) has returned.
    ///
    /// # Errors
    ///
    /// If the emulator does not know the instruction, or a memory access is not possible.
    pub(super) fn execute(&mut self, decoded: &Decoded) -> Result<(), Uninterpreted> {
        let at = decoded.at();
        let text = || decoded.text();
        match emulate_decoded(self, decoded) {
            Outcome::Done => Ok(()),
            Outcome::Fault(_) if self.memory.is_spent() => {
                let text = text();
                Err(Uninterpreted::TooMuchMemory { at, text })
            }
            Outcome::Fault(Fault::Registers) => {
                let text = text();
                Err(Uninterpreted::Beyond { at, text })
            }
            Outcome::Fault(fault) => {
                let text = text();
                Err(Uninterpreted::Fault { at, text, fault })
            }
            Outcome::Unsupported(reason) => {
                let text = text();
                Err(Uninterpreted::Unsupported { at, text, reason })
            }
        }
    }

    /// The 8 bytes on top of the stack.
    pub(super) fn top_of_stack(&mut self) -> Option<u64> {
        let mut word = [0; 8];
        let rsp = Gva(self.gpr(Gpr::Rsp));
        self.load(rsp, &mut word).then(|| u64::from_le_bytes(word))
    }

    /// Goes on at `function`, as called from in front of `returns_to`; `false` if the stack cannot be written.
    pub(super) fn call(&mut self, function: Gva, returns_to: Gva) -> bool {
        let rsp = Gva(self.gpr(Gpr::Rsp).wrapping_sub(8));
        let is_pushed = self.memory.store(rsp, &returns_to.0.to_le_bytes());
        self.set_gpr(Gpr::Rsp, rsp.0);
        self.rip = function;
        is_pushed
    }

    /// Returns `value` from the function whose first instruction is next; `false` if the stack cannot be read.
    pub(super) fn return_now(&mut self, value: u64) -> bool {
        let Some(returns_to) = self.top_of_stack() else {
            return false;
        };
        let rsp = self.gpr(Gpr::Rsp).wrapping_add(8);
        self.set_gpr(Gpr::Rsp, rsp);
        self.set_gpr(Gpr::Rax, value);
        self.rip = Gva(returns_to);
        true
    }

    /// Reads memory as the code has left it, without a limit.
    pub(super) fn look(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        self.memory.look(at, buf)
    }

    /// Reads memory as the code has left it, for the code.
    fn load(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        let mut pretended = self.pretended.iter();
        let pretended = pretended.find(|pretended| pretended.at == at);
        match (pretended, <&mut [u8; 8]>::try_from(&mut *buf)) {
            (Some(pretended), Ok(buf)) => {
                *buf = pretended.value.to_le_bytes();
                true
            }
            _ => self.memory.load(at, buf),
        }
    }
}

impl Cpu for Interpreter<'_> {
    fn gpr(&self, register: Gpr) -> u64 {
        self.registers.gprs[register.number()]
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        self.registers.gprs[register.number()] = value;
    }

    fn rip(&self) -> u64 {
        self.rip.0
    }

    fn set_rip(&mut self, value: u64) {
        self.rip = Gva(value);
    }

    fn rflags(&self) -> u64 {
        self.registers.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.registers.rflags = value;
    }

    fn segment_base(&mut self, segment: Segment) -> Result<u64, Fault> {
        match segment {
            Segment::Gs => Ok(self.registers.gs),
            Segment::Fs => Err(Fault::Registers),
        }
    }

    fn privilege_level(&mut self) -> Result<u8, Fault> {
        Ok(0)
    }

    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault> {
        let fault = Fault::NotMapped { at, access };
        self.load(at, buf).then_some(()).ok_or(fault)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), Fault> {
        let access = Access::Write;
        let fault = Fault::NotMemory { at, access };
        self.memory.store(at, bytes).then_some(()).ok_or(fault)
    }

    fn compare_exchange(&mut self, at: Gva, old: &[u8], new: &[u8]) -> Result<bool, Fault> {
        let mut present = vec![0; old.len()];
        self.read(at, &mut present, Access::Write)?;
        if present != old {
            return Ok(false);
        }
        self.write(at, new).map(|()| true)
    }

    fn has_57_bits(&mut self) -> Result<bool, Fault> {
        Ok(self.registers.has_57_bits)
    }

    fn features(&self) -> Features {
        self.registers.features
    }
}
