//! One rule of ORC, and the format in which a kernel stores its rules.

use std::cmp::Ordering;

/// The size of a `struct orc_entry` in bytes, the same in all kernels: two offsets, and two bytes of bit fields.
pub(super) const RULE_BYTES: usize = 6;

/// The number of the stack pointer as a base, since the registers have been numbered like the processor's.
const SP_OF_NEW: u16 = 3;
/// The number of the stack pointer as a base before.
const SP_OF_OLD: u16 = 5;

/// How to find the caller's frame from an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The code has no frame that can be described.
    Undefined,
    /// No frame is above: the entry from user mode, or the first function of a kernel thread.
    EndOfStack,
    /// The caller has a frame.
    Frame(FrameRule),
}

/// Where the caller's frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRule {
    /// The register that the caller's stack pointer is computed from.
    pub base: Base,
    /// The offset from the base.
    pub offset: i16,
    /// Where the caller's frame pointer is.
    pub bp: PreviousBp,
    /// What lies below the caller's stack pointer, or at it.
    pub kind: FrameKind,
    /// Whether the caller was interrupted: its instruction is the next, and does not lie behind a call.
    pub interrupted: bool,
}

/// The base of the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Base {
    Sp,
    Bp,
    Ax,
    Dx,
    Di,
    R10,
    R13,
    /// The word on top of the stack; the offset is added to the word.
    SpIndirect,
    /// The word at the offset from the frame pointer.
    BpIndirect,
}

/// The caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousBp {
    /// The function has not changed the frame pointer.
    Unchanged,
    /// Saved at this offset from the caller's stack pointer.
    FromPreviousSp(i16),
    /// Saved at this offset from the present frame pointer.
    FromBp(i16),
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A return address, below the caller's stack pointer.
    Call,
    /// All registers of the interrupted code.
    Registers,
    /// The processor's interrupt frame only.
    InterruptFrame,
}

/// The numbers of registers and types in the rules of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Whether the registers are numbered like the processor's.
    numbers_like_processor: bool,
    types: Types,
}

/// The numbers of the types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Types {
    /// A call is 0; the end of the stack has a bit of its own. With or without a bit for interrupted callers.
    CallIsZero { has_interrupted: bool },
    /// A call is 2, the end of the stack is 1.
    CallIsTwo,
}

impl Format {
    /// The format of a kernel's `rules`; `None` if no rule starts from the stack pointer.
    pub(super) fn of(rules: &[u8]) -> Option<Self> {
        let (mut new, mut old) = (Tally::default(), Tally::default());
        let mut has_interrupted = false;
        for rule in rules.chunks_exact(RULE_BYTES) {
            let bits = u16::from_le_bytes([rule[4], rule[5]]);
            match bits & 0xf {
                SP_OF_NEW => new.count(bits),
                SP_OF_OLD => old.count(bits),
                _ => (),
            }
            // A rule for the end of the stack has no base.
            has_interrupted |= bits & 0xf != 0 && bits & 0x400 != 0;
        }
        let numbers_like_processor = match new.all().cmp(&old.all()) {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => return None,
        };
        let tally = if numbers_like_processor { new } else { old };
        let types = match tally.twos > tally.zeros {
            true => Types::CallIsTwo,
            false => Types::CallIsZero { has_interrupted },
        };
        Some(Self {
            numbers_like_processor,
            types,
        })
    }

    /// The rule in the bytes of a `struct orc_entry`.
    pub(super) fn rule(self, bytes: [u8; RULE_BYTES]) -> Rule {
        let [s0, s1, b0, b1, low, high] = bytes;
        let bits = u16::from_le_bytes([low, high]);
        let (kind, interrupted) = match self.kind(bits) {
            Ok(kind) => kind,
            Err(end) => return end,
        };
        let bp_offset = i16::from_le_bytes([b0, b1]);
        let (Some(base), Some(bp)) = (
            self.base(bits & 0xf),
            self.previous_bp(bits >> 4 & 0xf, bp_offset),
        ) else {
            return Rule::Undefined;
        };
        Rule::Frame(FrameRule {
            base,
            offset: i16::from_le_bytes([s0, s1]),
            bp,
            kind,
            interrupted,
        })
    }

    /// The kind of frame, and whether the caller was interrupted; or the rule of code without a frame above.
    fn kind(self, bits: u16) -> Result<(FrameKind, bool), Rule> {
        match self.types {
            Types::CallIsZero { has_interrupted } => {
                if bits & 0xf == 0 {
                    let end = if has_interrupted { 0x800 } else { 0x400 };
                    return Err(match bits & end {
                        0 => Rule::Undefined,
                        _ => Rule::EndOfStack,
                    });
                }
                let kind = match bits >> 8 & 3 {
                    0 => FrameKind::Call,
                    1 => FrameKind::Registers,
                    2 => FrameKind::InterruptFrame,
                    _ => return Err(Rule::Undefined),
                };
                let interrupted = match has_interrupted {
                    true => bits & 0x400 != 0,
                    false => kind != FrameKind::Call,
                };
                Ok((kind, interrupted))
            }
            Types::CallIsTwo => {
                let kind = match bits >> 8 & 7 {
                    1 => return Err(Rule::EndOfStack),
                    2 => FrameKind::Call,
                    3 => FrameKind::Registers,
                    4 => FrameKind::InterruptFrame,
                    _ => return Err(Rule::Undefined),
                };
                Ok((kind, bits & 0x800 != 0))
            }
        }
    }

    fn base(self, number: u16) -> Option<Base> {
        Some(match (self.numbers_like_processor, number) {
            (true, 1) => Base::Ax,
            (_, 2) => Base::Dx,
            (true, 3) | (false, 5) => Base::Sp,
            (_, 4) => Base::Bp,
            (true, 5) | (false, 3) => Base::Di,
            (_, 6) => Base::R10,
            (_, 7) => Base::R13,
            (_, 9) => Base::SpIndirect,
            (true, 10) | (false, 8) => Base::BpIndirect,
            _ => return None,
        })
    }

    fn previous_bp(self, number: u16, offset: i16) -> Option<PreviousBp> {
        Some(match (self.numbers_like_processor, number) {
            (_, 0) => PreviousBp::Unchanged,
            (true, 8) | (false, 1) => PreviousBp::FromPreviousSp(offset),
            (_, 4) => PreviousBp::FromBp(offset),
            _ => return None,
        })
    }
}

/// The rules of one base, by the number of their type.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    zeros: usize,
    twos: usize,
}

impl Tally {
    fn count(&mut self, bits: u16) {
        match bits >> 8 & 3 {
            0 => self.zeros += 1,
            2 => self.twos += 1,
            _ => (),
        }
    }

    const fn all(self) -> usize {
        self.zeros + self.twos
    }
}
