//! Instructions, and states in which they neither fault nor leave the sandbox.

use address::Gva;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};
use introspect::insn::{Class, Decoded, Gpr, classify, decode};

use crate::Random;

/// The addresses of code and data.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The instruction.
    pub instruction: u64,
    /// The branch target.
    pub target: u64,
    /// The data.
    pub data: u64,
    /// The size of the data.
    pub data_bytes: usize,
}

/// An instruction and the state before the run.
#[derive(Clone, Debug)]
pub struct Case {
    /// The instruction.
    pub decoded: Decoded,
    /// The general registers.
    pub gprs: [u64; 16],
    /// The flags.
    pub rflags: u64,
    /// The contents of the data.
    pub data: Vec<u8>,
}

const DIRECTION: u64 = 1 << 10;
const STATUS_AND_DIRECTION: u64 = 0xcd5;
/// The kernel's flags for programs: interrupts on, and the fixed bit.
const BASE_FLAGS: u64 = 0x202;

/// A random case; `None` when the bytes are not an instruction to be emulated.
pub fn case(random: &mut Random, layout: &Layout) -> Option<Case> {
    let bytes = bytes(random);
    state(bytes, random, layout)
}

/// A random state for the instruction in `bytes`; `None` when they are not an instruction to be emulated.
pub fn state(mut bytes: Vec<u8>, random: &mut Random, layout: &Layout) -> Option<Case> {
    let decoded = decode(&bytes, Gva(layout.instruction)).ok()?;
    if classify(&decoded) != Class::Emulatable {
        return None;
    }
    aim(&mut bytes, &decoded, random, layout)?;
    let decoded = decode(&bytes[..decoded.len()], Gva(layout.instruction)).ok()?;

    let middle = layout.data + layout.data_bytes as u64 / 2;
    let mut gprs = [0; 16].map(|_: u64| random.value());
    gprs[Gpr::Rsp.number()] = middle + random.below(64);
    let mut data = vec![0; layout.data_bytes];
    data.fill_with(|| random.byte());
    let mut case = Case {
        decoded,
        gprs,
        rflags: BASE_FLAGS | (random.next() & STATUS_AND_DIRECTION),
        data,
    };
    case.meet(random, layout, middle);
    Some(case)
}

/// Prefixes, an opcode of an opcode map, and more bytes than any instruction has.
fn bytes(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (prefix, chances) in [(0x66, 4), (0x67, 8), (0x65, 8), (0x2e, 16), (0xf0, 12)] {
        if random.one_in(chances) {
            bytes.push(prefix);
        }
    }
    if random.one_in(8) {
        bytes.push(if random.one_in(2) { 0xf2 } else { 0xf3 });
    }
    if random.one_in(2) {
        bytes.push(0x40 | random.byte() & 0xf);
    }
    match random.below(8) {
        0..=3 => {}
        4..=6 => bytes.push(0x0f),
        _ => bytes.extend([0x0f, 0x38]),
    }
    for _ in 0..16 {
        bytes.push(random.byte());
    }
    bytes
}

/// Points direct branches and absolute and RIP-relative operands at the sandbox.
fn aim(bytes: &mut [u8], decoded: &Decoded, random: &mut Random, layout: &Layout) -> Option<()> {
    let insn = decoded.instruction();
    let mut decoder = Decoder::with_ip(64, bytes, layout.instruction, DecoderOptions::NONE);
    let again = decoder.decode();
    let offsets = decoder.get_constant_offsets(&again);
    let mut patch = |offset: usize, size: usize, value: u64| {
        bytes.get_mut(offset..offset + size).map(|field| {
            field.copy_from_slice(&value.to_le_bytes()[..size]);
        })
    };
    if decoded.branch_target().is_some() {
        let distance = layout.target.wrapping_sub(decoded.next().0);
        patch(
            offsets.immediate_offset(),
            offsets.immediate_size(),
            distance,
        )?;
    }
    let fixed = insn.memory_base() == Register::None && insn.memory_index() == Register::None;
    if offsets.has_displacement() && (fixed || insn.is_ip_rel_memory_operand()) {
        let origin = if insn.is_ip_rel_memory_operand() {
            decoded.next().0
        } else {
            0
        };
        // GS starts at the data.
        let base = if insn.memory_segment() == Register::GS {
            layout.data
        } else {
            0
        };
        let place = layout.data + layout.data_bytes as u64 / 2 + random.below(64);
        let displacement = place.wrapping_sub(base).wrapping_sub(origin);
        patch(
            offsets.displacement_offset(),
            offsets.displacement_size(),
            displacement,
        )?;
    }
    Some(())
}

impl Case {
    fn set(&mut self, register: Register, value: u64) {
        self.gprs[register.full_register().number()] = value;
    }

    /// Sets the state to give the instruction valid operands.
    fn meet(&mut self, random: &mut Random, layout: &Layout, middle: u64) {
        let insn = *self.decoded.instruction();
        if insn.is_string_instruction() {
            let gs = if insn.memory_segment() == Register::GS {
                layout.data
            } else {
                0
            };
            self.set(Register::RSI, middle - gs + random.below(64));
            self.set(Register::RDI, middle + random.below(128) - 64);
            if insn.has_rep_prefix() {
                self.set(Register::RCX, random.below(40));
                self.rflags &= !random.next() | !DIRECTION;
            }
            return;
        }
        match insn.mnemonic() {
            Mnemonic::Leave => self.set(Register::RBP, middle + random.below(64)),
            // Quotients within range.
            Mnemonic::Div | Mnemonic::Idiv => {
                let high = random.next() >> 64u64.saturating_sub(random.below(60)).min(63);
                let sign = if random.one_in(2) { u64::MAX } else { 0 };
                self.set(Register::RDX, high ^ sign);
            }
            Mnemonic::Loop
            | Mnemonic::Loope
            | Mnemonic::Loopne
            | Mnemonic::Jrcxz
            | Mnemonic::Jecxz => {
                let count = random.below(3) | (random.below(2) << 32);
                self.set(Register::RCX, count);
            }
            // Bit numbers within the data, for any operand size.
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
                if insn.op1_kind() == OpKind::Register =>
            {
                let number = random.below(4096).wrapping_sub(2048);
                self.set(insn.op1_register(), number);
            }
            Mnemonic::Cmpxchg if random.one_in(2) => {
                let same = random.value();
                self.set(Register::RAX, same);
                if insn.op0_kind() == OpKind::Register {
                    self.set(insn.op0_register(), same);
                }
            }
            _ => {}
        }
        if insn.op_kinds().any(|kind| kind == OpKind::Memory) {
            self.point(random, layout, middle);
        }
        self.aim_indirect(layout);
    }

    /// Sets base and index for a memory operand near the middle of the data.
    fn point(&mut self, random: &mut Random, layout: &Layout, middle: u64) {
        let insn = *self.decoded.instruction();
        let (base, index) = (insn.memory_base(), insn.memory_index());
        let segment = if insn.memory_segment() == Register::GS {
            layout.data
        } else {
            0
        };
        let place = (middle + random.below(64)).wrapping_sub(segment);
        let rest = place.wrapping_sub(insn.memory_displacement64());
        let scale = u64::from(insn.memory_index_scale());
        let is_gpr = |register: Register| register.is_gpr();
        if is_gpr(base) && is_gpr(index) && base.full_register() != index.full_register() {
            let value = random.value();
            self.set(index, value);
            // A 32-bit index is used without the upper bits.
            let used = if index.size() == 4 {
                value & 0xffff_ffff
            } else {
                value
            };
            self.set(base, rest.wrapping_sub(used.wrapping_mul(scale)));
        } else if is_gpr(base) && is_gpr(index) {
            self.set(base, rest / (scale + 1));
        } else if is_gpr(base) {
            self.set(base, rest);
        } else if is_gpr(index) {
            self.set(index, rest / scale);
        }
        for register in [base, index] {
            if register.size() == 4 && random.one_in(2) {
                let low = self.gprs[register.full_register().number()] & 0xffff_ffff;
                self.set(register, low | random.next() << 32);
            }
        }
    }

    /// Puts the branch target in the operand of an indirect branch, or on the stack for a return.
    fn aim_indirect(&mut self, layout: &Layout) {
        let insn = *self.decoded.instruction();
        match insn.flow_control() {
            FlowControl::Return => {
                let rsp = self.gprs[Gpr::Rsp.number()];
                self.store(layout, rsp, layout.target);
            }
            FlowControl::IndirectBranch | FlowControl::IndirectCall => {
                if insn.op0_kind() == OpKind::Register {
                    self.set(insn.op0_register(), layout.target);
                } else if let Some(at) = self.address(layout) {
                    self.store(layout, at, layout.target);
                }
            }
            _ => {}
        }
        if matches!(insn.mnemonic(), Mnemonic::Popf | Mnemonic::Popfq) {
            // Without trap flags, and without flags harmful to the host's kernel.
            let rsp = self.gprs[Gpr::Rsp.number()];
            let image = self.gprs[0] & 0x20_3ed5;
            self.store(layout, rsp, image);
        }
    }

    /// The address of the memory operand, computed by iced.
    fn address(&self, layout: &Layout) -> Option<u64> {
        self.decoded
            .instruction()
            .virtual_address(0, 0, |register, _, _| match register {
                Register::GS => Some(layout.data),
                _ if register.is_segment_register() => Some(0),
                _ => Some(self.gprs[register.full_register().number()]),
            })
    }

    fn store(&mut self, layout: &Layout, at: u64, value: u64) {
        let offset = usize::try_from(at.wrapping_sub(layout.data)).unwrap_or(usize::MAX);
        if let Some(place) = self.data.get_mut(offset..offset.saturating_add(8)) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }
}
