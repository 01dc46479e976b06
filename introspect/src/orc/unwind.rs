//! Follows the rules from frame to frame.

use address::Gva;
use thiserror::Error;

use super::format::{Base, FrameKind, FrameRule, PreviousBp, Rule};

/// The size of most stacks of the kernel. Below this distance, a caller's frame is on the same stack.
const STACK_BYTES: u64 = 16 << 10;
/// The most frames in a row without a rule, as of generated code (BPF).
const MAX_UNKNOWN: usize = 8;
/// The lowest address of the kernel with page tables of five levels; those of four begin above.
const KERNEL_HALF: u64 = 0xff00_0000_0000_0000;

/// The places in `struct pt_regs` of the registers that rules use, in bytes.
mod saved {
    pub(super) const R13: u64 = 16;
    pub(super) const BP: u64 = 32;
    pub(super) const R10: u64 = 56;
    pub(super) const AX: u64 = 80;
    pub(super) const DX: u64 = 96;
    pub(super) const DI: u64 = 112;
    /// The processor's interrupt frame: IP, CS, flags, SP.
    pub(super) const IP: u64 = 128;
}

/// The offsets in the processor's interrupt frame.
const FRAME_CS: u64 = 8;
const FRAME_SP: u64 = 24;
/// The privilege bits of CS.
const USER_MODE: u64 = 3;

/// The kernel that a stack belongs to.
pub trait StackSource {
    /// The rule for the instruction at `at`; `None` for code without rules.
    fn rule(&self, at: Gva) -> Option<Rule>;

    /// The word in the kernel's memory at `at`, if readable.
    fn word(&self, at: Gva) -> Option<u64>;

    /// Whether a tracer of the guest puts `at` on the stack in place of return addresses.
    fn replaces_returns(&self, at: Gva) -> bool;

    /// If `at` is in injected code, the place that the code stands for.
    fn displaced(&self, at: Gva) -> Option<Displaced>;
}

/// The place in the kernel that injected code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The instruction of the kernel that is executed next.
    pub ip: Gva,
    /// The bytes that the injected code has pushed on the stack.
    pub pushed_bytes: u64,
}

/// The registers that an unwinding starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub struct StartRegisters {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    pub ax: u64,
    pub dx: u64,
    pub di: u64,
    pub r10: u64,
    pub r13: u64,
}

/// The place where an unwinding starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A processor, stopped between two instructions.
    Stopped(StartRegisters),
    /// A task that is on no processor: what the kernel saved when the task was switched out.
    SwitchedOut(SwitchFrame),
}

/// What the kernel saves on the stack of a task that it switches out (`struct inactive_task_frame`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchFrame {
    /// The return address.
    pub ip: u64,
    /// The stack pointer behind the frame.
    pub sp: u64,
    /// The frame pointer.
    pub bp: u64,
    /// Whether the task has not run yet: `ip` is a function's first instruction, and no return address.
    pub is_new: bool,
}

/// An instruction on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeFrame {
    /// The instruction that is executed next in this function.
    pub ip: Gva,
    /// Whether the instruction lies behind a call. Then the byte before selects the function: a call that does not return may be
    /// the last instruction of its function.
    pub is_return_address: bool,
}

/// A stack, the innermost function first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelStack {
    /// The frames.
    pub frames: Vec<CodeFrame>,
    /// The reason why the last frame is not the end of the stack.
    pub incomplete: Option<Incomplete>,
    /// If a program called the kernel or was interrupted: where the kernel has saved the program's registers.
    pub program: Option<SavedRegisters>,
}

/// The place where the kernel has saved the registers of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedRegisters {
    /// The `struct pt_regs` here.
    All(Gva),
    /// The processor's interrupt frame here: IP, CS, flags, SP.
    InterruptFrame(Gva),
}

/// The reason why a stack ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Incomplete {
    /// The limit is reached.
    #[error("the stack has more than {0} frames")]
    TooMany(usize),
    /// A word of the stack is missing.
    #[error("the stack cannot be read at {0}")]
    Unreadable(Gva),
    /// The kernel does not describe the code.
    #[error("the kernel has no unwind rule for the code at {0}")]
    NoRule(Gva),
    /// The rule needs a register whose value is not known.
    #[error("the unwind rule at {0} needs a register that is not known")]
    NoRegister(Gva),
    /// The function does not return to its caller, but to a tracer of the guest, which knows the caller.
    #[error("a tracer of the guest has replaced the return address by {0}")]
    Replaced(Gva),
    /// The caller's frame lies below.
    #[error("the frame of the caller of {0} lies below its own")]
    WrongDirection(Gva),
    /// The guest's lists and tables are too long.
    #[error("reading the stack took more than {0} steps")]
    TooCostly(usize),
    /// The return address is not in the kernel's half of the address space.
    #[error("the return address {0} is no kernel address")]
    NotKernel(Gva),
}

/// Unwinds the stack from `start` on, `limit` frames at the most.
pub fn unwind(source: &dyn StackSource, start: Start, limit: usize) -> KernelStack {
    let mut at = Position::new(source, start);
    let mut stack = KernelStack::default();
    let mut unknown = 0;
    loop {
        if stack.frames.len() >= limit {
            stack.incomplete = Some(Incomplete::TooMany(limit));
            return stack;
        }
        let is_replaced = !at.interrupted && source.replaces_returns(Gva(at.ip));
        stack.frames.push(CodeFrame {
            ip: Gva(at.ip),
            is_return_address: !at.interrupted && !is_replaced,
        });
        if is_replaced {
            stack.incomplete = Some(Incomplete::Replaced(Gva(at.ip)));
            return stack;
        }
        let rule = match at.rule(source) {
            Some(rule) => {
                unknown = 0;
                rule
            }
            None => {
                unknown += 1;
                guess(at.ip)
            }
        };
        let next = match rule {
            Rule::EndOfStack => return stack,
            Rule::Frame(rule) if unknown <= MAX_UNKNOWN => at.caller(source, rule),
            Rule::Undefined | Rule::Frame(_) => Err(Incomplete::NoRule(Gva(at.ip))),
        };
        match next {
            Ok(Caller::Kernel(next)) => at = next,
            Ok(Caller::Program(saved)) => {
                stack.program = Some(saved);
                return stack;
            }
            Err(incomplete) => {
                stack.incomplete = Some(incomplete);
                return stack;
            }
        }
    }
}

/// The rule for code without one. Generated code has a frame pointer; after a call through a null pointer, the return address is
/// on top of the stack.
const fn guess(ip: u64) -> Rule {
    let (base, offset, bp) = match ip {
        0 => (Base::Sp, 8, PreviousBp::Unchanged),
        _ => (Base::Bp, 16, PreviousBp::FromPreviousSp(-16)),
    };
    Rule::Frame(FrameRule {
        base,
        offset,
        bp,
        kind: FrameKind::Call,
        interrupted: false,
    })
}

/// The registers of a frame, as far as known.
#[derive(Clone, Copy, Debug)]
struct Position {
    ip: u64,
    sp: u64,
    bp: u64,
    interrupted: bool,
    /// All registers, at the start and behind an interrupt.
    all: Option<StartRegisters>,
}

/// What called the code of a frame, or was interrupted.
enum Caller {
    Kernel(Position),
    Program(SavedRegisters),
}

impl Position {
    fn new(source: &dyn StackSource, start: Start) -> Self {
        let mut position = match start {
            Start::Stopped(registers) => Self {
                ip: registers.ip,
                sp: registers.sp,
                bp: registers.bp,
                interrupted: true,
                all: Some(registers),
            },
            Start::SwitchedOut(frame) => Self {
                ip: frame.ip,
                sp: frame.sp,
                bp: frame.bp,
                interrupted: frame.is_new,
                all: None,
            },
        };
        position.leave_injected_code(source);
        position
    }

    /// If the code was injected, continues as at the kernel's own instruction.
    fn leave_injected_code(&mut self, source: &dyn StackSource) {
        if let Some(displaced) = source.displaced(Gva(self.ip)) {
            self.ip = displaced.ip.0;
            self.sp = self.sp.wrapping_add(displaced.pushed_bytes);
        }
    }

    fn rule(&self, source: &dyn StackSource) -> Option<Rule> {
        let back = u64::from(!self.interrupted);
        source.rule(Gva(self.ip.wrapping_sub(back)))
    }

    fn caller(&self, source: &dyn StackSource, rule: FrameRule) -> Result<Caller, Incomplete> {
        let word = |at: u64| source.word(Gva(at)).ok_or(Incomplete::Unreadable(Gva(at)));
        let sp = self.previous_sp(rule, word)?;
        let (ip, caller_sp, all) = match rule.kind {
            FrameKind::Call => (word(sp.wrapping_sub(8))?, sp, None),
            FrameKind::Registers | FrameKind::InterruptFrame => {
                let frame = match rule.kind {
                    FrameKind::Registers => sp.wrapping_add(saved::IP),
                    _ => sp,
                };
                if word(frame.wrapping_add(FRAME_CS))? & USER_MODE != 0 {
                    return Ok(Caller::Program(match rule.kind {
                        FrameKind::Registers => SavedRegisters::All(Gva(sp)),
                        _ => SavedRegisters::InterruptFrame(Gva(sp)),
                    }));
                }
                let all = match rule.kind {
                    FrameKind::Registers => Some(registers_at(sp, word)?),
                    _ => self.all,
                };
                (word(frame)?, word(frame.wrapping_add(FRAME_SP))?, all)
            }
        };
        let bp = match rule.bp {
            PreviousBp::Unchanged => all.map_or(self.bp, |all| all.bp),
            PreviousBp::FromPreviousSp(offset) => word(offset_by(sp, offset))?,
            PreviousBp::FromBp(offset) => word(offset_by(self.bp, offset))?,
        };
        // An interrupt, and the change to the stack of interrupts, may come from a stack below that is as near.
        let stays_on_stack = rule.kind == FrameKind::Call && rule.base != Base::SpIndirect;
        let is_below = caller_sp <= self.sp && self.sp - caller_sp < STACK_BYTES;
        if stays_on_stack && is_below {
            return Err(Incomplete::WrongDirection(Gva(self.ip)));
        }
        // A fault at 0 is a call through a null pointer.
        let is_null_call = ip == 0 && rule.interrupted;
        if ip < KERNEL_HALF && !is_null_call {
            return Err(Incomplete::NotKernel(Gva(ip)));
        }
        let mut caller = Self {
            ip,
            sp: caller_sp,
            bp,
            interrupted: rule.interrupted,
            all,
        };
        caller.leave_injected_code(source);
        Ok(Caller::Kernel(caller))
    }

    /// The stack pointer that the rule describes.
    fn previous_sp(
        &self,
        rule: FrameRule,
        word: impl Fn(u64) -> Result<u64, Incomplete>,
    ) -> Result<u64, Incomplete> {
        let known = self.all.ok_or(Incomplete::NoRegister(Gva(self.ip)));
        let base = match rule.base {
            Base::Sp => self.sp,
            Base::Bp => self.bp,
            Base::SpIndirect => word(self.sp)?,
            Base::BpIndirect => return word(offset_by(self.bp, rule.offset)),
            // The offset does not count for these.
            Base::Ax => return known.map(|all| all.ax),
            Base::Dx => return known.map(|all| all.dx),
            Base::Di => return known.map(|all| all.di),
            Base::R10 => return known.map(|all| all.r10),
            Base::R13 => return known.map(|all| all.r13),
        };
        Ok(offset_by(base, rule.offset))
    }
}

fn offset_by(base: u64, offset: i16) -> u64 {
    base.wrapping_add_signed(i64::from(offset))
}

/// The registers in a `struct pt_regs` at `at`. `ip` and `sp` are not used.
fn registers_at(
    at: u64,
    word: impl Fn(u64) -> Result<u64, Incomplete>,
) -> Result<StartRegisters, Incomplete> {
    let register = |offset| word(at.wrapping_add(offset));
    Ok(StartRegisters {
        ip: 0,
        sp: 0,
        bp: register(saved::BP)?,
        ax: register(saved::AX)?,
        dx: register(saved::DX)?,
        di: register(saved::DI)?,
        r10: register(saved::R10)?,
        r13: register(saved::R13)?,
    })
}
