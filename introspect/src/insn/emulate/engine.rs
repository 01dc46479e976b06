//! Emulating one instruction.

use std::sync::atomic::{Ordering, fence};

use address::Gva;

use super::effects::{Commit, Effects, Stop};
use super::family::Family;
use super::{
    arith, bits, branch, data, flags, interrupts, logic, multiply, segment, shift, stack, status,
    string, transfer,
};
use crate::insn::class::family;
use crate::insn::cpu::{Cpu, Fault};
use crate::insn::decode::{Decoded, decode};
use crate::insn::reason::Reason;

/// The result of emulating an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The instruction is complete: registers, flags, memory and RIP have the state after the
    /// instruction.
    Done,
    /// A memory access failed, or a register of the vCPU could not be fetched; nothing has changed.
    /// Run by the guest, the instruction would most likely fault at the same address.
    Fault(Fault),
    /// The hardware must run the instruction; nothing has changed.
    Unsupported(Reason),
}

/// Emulates the instruction at RIP. `bytes` begin with the instruction's bytes (the original bytes,
/// without plants).
///
/// If the result is [`Outcome::Done`], the caller ends the interrupt shadow cast by the previous
/// instruction: the shadow is processor state outside [`Cpu`]. Emulated accesses do not trigger the
/// guest's data breakpoints in debug registers.
pub fn emulate<C: Cpu + ?Sized>(cpu: &mut C, bytes: &[u8]) -> Outcome {
    match decode(bytes, Gva(cpu.rip())) {
        Ok(decoded) => emulate_decoded(cpu, &decoded),
        Err(_) => Outcome::Unsupported(Reason::Undecodable),
    }
}

/// Emulates an already decoded instruction; `decoded` must be for the address in RIP.
///
/// See [`emulate`].
pub fn emulate_decoded<C: Cpu + ?Sized>(cpu: &mut C, decoded: &Decoded) -> Outcome {
    match run(cpu, decoded) {
        Ok(()) => Outcome::Done,
        Err(Stop::Fault(fault)) => Outcome::Fault(fault),
        Err(Stop::Unsupported(reason)) => Outcome::Unsupported(reason),
    }
}

/// The most attempts at a locked instruction before the hardware must run the instruction.
const MOST_ATTEMPTS: usize = 16;

fn run<C: Cpu + ?Sized>(cpu: &mut C, decoded: &Decoded) -> Result<(), Stop> {
    if cpu.rip() != decoded.at().0 {
        return Err(Reason::Elsewhere.into());
    }
    let family = family(decoded)?;
    for _ in 0..MOST_ATTEMPTS {
        match attempt(cpu, family, decoded) {
            Ok(Commit::Done) => return Ok(()),
            Ok(Commit::Raced) => {}
            // On hardware a repeated instruction has moved all elements before the fault; the
            // emulator, moving all at once, has moved none.
            Err(Stop::Fault(_))
                if decoded.instruction().has_rep_prefix() && family == Family::String =>
            {
                return Err(Reason::Repeated.into());
            }
            Err(stop) => return Err(stop),
        }
    }
    Err(Reason::Locked.into())
}

fn attempt<C: Cpu + ?Sized>(
    cpu: &mut C,
    family: Family,
    decoded: &Decoded,
) -> Result<Commit, Stop> {
    let mut effects = Effects::new(cpu, decoded.instruction());
    if effects.flags.was_set(flags::TRAP) {
        return Err(Reason::GuestTrapFlag.into());
    }
    let cpu = &mut effects;
    match family {
        Family::Nop => {}
        // The vCPU's thread is the guest's processor: the thread's fence orders the guest's
        // accesses.
        Family::Fence => fence(Ordering::SeqCst),
        Family::Arith => arith::run(cpu)?,
        Family::Logic => logic::run(cpu)?,
        Family::Multiply => multiply::run(cpu)?,
        Family::Shift => shift::run(cpu)?,
        Family::Bits => bits::run(cpu)?,
        Family::Data => data::run(cpu)?,
        Family::String => string::run(cpu)?,
        Family::Stack => stack::run(cpu)?,
        Family::Branch => branch::run(cpu)?,
        Family::Status => status::run(cpu)?,
        Family::Segment => segment::run(cpu)?,
        Family::Interrupts => interrupts::run(cpu)?,
        Family::Transfer => transfer::run(cpu)?,
    }
    effects.commit()
}
