//! Decodes one instruction from untrusted bytes.

use std::fmt;

use address::Gva;
use iced_x86::{
    Decoder, DecoderError as IcedError, DecoderOptions, FastFormatter, Instruction, OpKind,
};
use thiserror::Error;

/// The length of the longest x86 instruction.
pub const MAX_LENGTH_BYTES: usize = 15;

/// Why bytes are not an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the instruction does.
    #[error("the instruction at {at} goes on past the {have} bytes at hand")]
    Truncated {
        /// The address of the instruction.
        at: Gva,
        /// The number of bytes at hand.
        have: usize,
    },
    /// No 64-bit instruction begins with the bytes.
    #[error("no instruction begins with the bytes at {at}")]
    Invalid {
        /// The address of the bytes.
        at: Gva,
    },
}

/// An instruction, decoded for an address.
///
/// RIP-relative operands and branch targets are resolved against the address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    instruction: Instruction,
    bytes: [u8; MAX_LENGTH_BYTES],
}

impl Decoded {
    /// The address of the instruction.
    #[must_use]
    pub fn at(&self) -> Gva {
        Gva(self.instruction.ip())
    }

    /// The address of the next instruction.
    #[must_use]
    pub fn next(&self) -> Gva {
        Gva(self.instruction.next_ip())
    }

    /// The length, 1..=15 bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no instruction is empty")]
    pub fn len(&self) -> usize {
        self.instruction.len()
    }

    /// The instruction's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// The instruction as decoded by iced-x86.
    #[must_use]
    pub fn instruction(&self) -> &Instruction {
        &self.instruction
    }

    /// The target of a direct near jump, conditional jump, loop or call.
    #[must_use]
    pub fn branch_target(&self) -> Option<Gva> {
        // By operand, not by mnemonic, so that no instruction with a target is forgotten
        // (`xbegin`).
        (self.instruction.op0_kind() == OpKind::NearBranch64)
            .then(|| Gva(self.instruction.near_branch64()))
    }

    /// The instruction as text, in Intel's syntax.
    #[must_use]
    pub fn text(&self) -> String {
        let mut formatter = FastFormatter::new();
        let options = formatter.options_mut();
        options.set_use_hex_prefix(true);
        options.set_uppercase_hex(false);
        options.set_space_after_operand_separator(true);
        let mut text = String::new();
        formatter.format(&self.instruction, &mut text);
        text
    }

    /// The prefixes in the bytes; iced-x86 returns only the effects of prefixes.
    pub(super) fn prefixes(&self) -> Prefixes {
        let mut prefixes = Prefixes {
            data16: false,
            rex: 0,
        };
        for &byte in self.bytes() {
            match byte {
                0x66 => prefixes.data16 = true,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 | 0xf0 | 0xf2 | 0xf3 => {}
                0x40..=0x4f => {
                    prefixes.rex = byte;
                    continue;
                }
                _ => break,
            }
            // A REX prefix counts only right before the opcode.
            prefixes.rex = 0;
        }
        prefixes
    }
}

/// Prefixes with different effects on different processors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes {
    /// The prefixes include 0x66.
    data16: bool,
    /// The REX prefix, or zero.
    rex: u8,
}

impl Prefixes {
    /// Whether the prefixes ask for 16-bit operands: REX.W overrules 0x66.
    pub(super) fn has_effective_data16(self) -> bool {
        self.data16 && self.rex & 8 == 0
    }

    /// REX.B, the fourth bit of the number of a base or of a register in the opcode.
    pub(super) fn has_rex_b(self) -> bool {
        self.rex & 1 != 0
    }
}

impl fmt::Debug for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Decoded({}: {:02x?} {})",
            self.at(),
            self.bytes(),
            self.text()
        )
    }
}

/// Decodes the 64-bit instruction at the start of `bytes`; `at` is the instruction's address in the
/// guest.
///
/// Bytes past the instruction are ignored.
///
/// # Errors
///
/// If no instruction begins there, or the instruction continues past the end of `bytes`.
pub fn decode(bytes: &[u8], at: Gva) -> Result<Decoded, DecodeError> {
    let bytes = &bytes[..bytes.len().min(MAX_LENGTH_BYTES)];
    let mut decoder = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    decoder.decode_out(&mut instruction);
    match decoder.last_error() {
        IcedError::None => {
            let mut own = [0; MAX_LENGTH_BYTES];
            own[..instruction.len()].copy_from_slice(&bytes[..instruction.len()]);
            Ok(Decoded {
                instruction,
                bytes: own,
            })
        }
        // With all 15 bytes at hand the instruction is too long, not cut short.
        IcedError::NoMoreBytes if bytes.len() < MAX_LENGTH_BYTES => Err(DecodeError::Truncated {
            at,
            have: bytes.len(),
        }),
        _ => Err(DecodeError::Invalid { at }),
    }
}
