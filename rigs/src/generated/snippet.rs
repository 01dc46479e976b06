//! A few instructions, and the state to run them in.

use address::Gva;
use iced_x86::RflagsBits;
use introspect::insn::{Class, Decoded, boundaries, classify};
use reference::Random;

use super::layout::{DATA_BYTES, EDGE_BYTES, Layout, STACK_BYTES};

/// Bit 1 of RFLAGS is always set.
const FIXED_FLAG: u64 = 2;
const STATUS_AND_DIRECTION: u64 = 0xcd5;
/// All exceptions masked, as at the processor's start.
const MXCSR: u64 = 0x1f80;

pub(super) const RAX: usize = 0;
pub(super) const RCX: usize = 1;
pub(super) const RDX: usize = 2;
pub(super) const RBX: usize = 3;
pub(super) const RSP: usize = 4;
pub(super) const RBP: usize = 5;
pub(super) const RSI: usize = 6;
pub(super) const RDI: usize = 7;

/// The state at a snippet's first instruction.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// In the order of their encoding.
    pub(super) gprs: [u64; 16],
    pub(super) rflags: u64,
    pub(super) mxcsr: u64,
    pub(super) vectors: [[u8; 32]; 4],
    pub(super) fs_base: u64,
    pub(super) gs_base: u64,
    pub(super) kernel_gs_base: u64,
    pub(super) data: [u8; DATA_BYTES],
    pub(super) edge: [u8; EDGE_BYTES],
    pub(super) stack: [u8; STACK_BYTES],
}

impl State {
    pub(super) fn random(random: &mut Random, layout: &Layout) -> Self {
        let mut gprs = [0; 16].map(|_: u64| random.value());
        gprs[RSP] = layout.stack() + STACK_BYTES as u64 / 2 + random.below(48);
        if random.one_in(2) {
            gprs[RSP] &= !7;
        }
        Self {
            gprs,
            rflags: FIXED_FLAG | (random.next() & STATUS_AND_DIRECTION),
            mxcsr: MXCSR,
            vectors: [[0; 32]; 4].map(|vector: [u8; 32]| vector.map(|_| random.byte())),
            fs_base: layout.stack(),
            gs_base: layout.data(),
            kernel_gs_base: layout.middle(),
            data: [0; DATA_BYTES].map(|_: u8| random.byte()),
            edge: [0; EDGE_BYTES].map(|_: u8| random.byte()),
            stack: [0; STACK_BYTES].map(|_: u8| random.byte()),
        }
    }

    /// Puts bytes where an address in the data or the stack says; elsewhere nothing happens.
    pub(super) fn store(&mut self, layout: &Layout, at: u64, bytes: &[u8]) {
        let areas: [(u64, &mut [u8]); 3] = [
            (layout.data(), &mut self.data),
            (layout.absent() - EDGE_BYTES as u64, &mut self.edge),
            (layout.stack(), &mut self.stack),
        ];
        for (start, area) in areas {
            let offset = usize::try_from(at.wrapping_sub(start)).unwrap_or(usize::MAX);
            if let Some(place) = area.get_mut(offset..offset.saturating_add(bytes.len())) {
                place.copy_from_slice(bytes);
            }
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct Snippet {
    /// The kind of the snippet.
    pub(super) kind: &'static str,
    pub(super) at: u64,
    pub(super) code: Vec<u8>,
    pub(super) state: State,
    /// Whether the snippet is left out, because the guest came to a bad end with the snippet.
    pub(super) skipped: bool,
}

impl Snippet {
    pub(super) fn instructions(&self) -> impl Iterator<Item = Decoded> + '_ {
        boundaries(&self.code, Gva(self.at)).map_while(Result::ok)
    }

    /// The likely reason if a processor cannot execute the snippet: the first instruction that is out of the ordinary, or undecodable
    /// bytes.
    pub(super) fn unknown(&self) -> String {
        let mut instructions = self.instructions();
        let extraordinary = instructions.find(|decoded| classify(decoded) != Class::Emulatable);
        match extraordinary.or_else(|| self.instructions().next()) {
            Some(decoded) => format!("{:?}", decoded.instruction().mnemonic()),
            None => format!("{:02x?}", self.code),
        }
    }

    pub(super) fn describe(&self) -> String {
        let text: Vec<String> = self.instructions().map(|decoded| decoded.text()).collect();
        format!(
            "{} {:02x?} at {:#x}: {}",
            self.kind,
            self.code,
            self.at,
            text.join("; ")
        )
    }

    /// The flags that are undefined after the snippet. The emulator may choose other values than the processor.
    pub(super) fn undefined_flags(&self) -> u64 {
        let mut undefined = 0;
        for decoded in self.instructions() {
            let instruction = decoded.instruction();
            undefined &= !instruction.rflags_modified();
            if classify(&decoded) == Class::Emulatable {
                undefined |= instruction.rflags_undefined();
            }
        }
        flags(undefined)
    }
}

/// Bits of RFLAGS for iced's.
fn flags(bits: u32) -> u64 {
    [
        (RflagsBits::OF, 1 << 11),
        (RflagsBits::SF, 1 << 7),
        (RflagsBits::ZF, 1 << 6),
        (RflagsBits::AF, 1 << 4),
        (RflagsBits::PF, 1 << 2),
        (RflagsBits::CF, 1),
    ]
    .iter()
    .filter(|(bit, _)| bits & bit != 0)
    .map(|(_, flag)| flag)
    .sum()
}
