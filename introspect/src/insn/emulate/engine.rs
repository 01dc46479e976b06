//! Running one instruction.

use std::sync::atomic::{Ordering, fence};

use super::effects::{Commit, Effects, Stop};
use super::family::Family;
use super::{
    arith, bits, branch, data, flags, interrupts, logic, multiply, segment, shift, stack, status,
    string, transfer,
};
use crate::Gva;
use crate::insn::class::{Reason, family};
use crate::insn::cpu::{Cpu, Fault};
use crate::insn::decode::{Decoded, decode};

/// What became of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It is done: registers, flags, memory and RIP are as after the instruction.
    Done,
    /// It could not access memory; nothing has changed. Run by the guest it would most likely
    /// fault there.
    Fault(Fault),
    /// The hardware must run it; nothing has changed.
    Unsupported(Reason),
}

/// Runs the instruction at RIP, whose bytes (the guest's own, without plants) come first in
/// `bytes`.
///
/// Of the processor's state outside [`Cpu`], the caller ends the interrupt shadow that the
/// instruction before has cast when this returns [`Outcome::Done`]. Data breakpoints that the guest has set
/// in debug registers do not notice emulated accesses.
pub fn emulate<C: Cpu + ?Sized>(cpu: &mut C, bytes: &[u8]) -> Outcome {
    match decode(bytes, Gva(cpu.rip())) {
        Ok(decoded) => emulate_decoded(cpu, &decoded),
        Err(_) => Outcome::Unsupported(Reason::Undecodable),
    }
}

/// Runs an instruction that was decoded before, for the address that RIP is at.
///
/// See [`emulate`].
pub fn emulate_decoded<C: Cpu + ?Sized>(cpu: &mut C, decoded: &Decoded) -> Outcome {
    match run(cpu, decoded) {
        Ok(()) => Outcome::Done,
        Err(Stop::Fault(fault)) => Outcome::Fault(fault),
        Err(Stop::Unsupported(reason)) => Outcome::Unsupported(reason),
    }
}

/// How often a locked instruction is started over before the hardware is to do it.
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
            // A repeated one has moved what comes before the fault; moved all at once, it would have moved nothing.
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
    if effects.flag(flags::TRAP) {
        return Err(Reason::GuestTrapFlag.into());
    }
    let cpu = &mut effects;
    match family {
        Family::Nop => {}
        // The vCPU's thread is the guest's processor: its fence orders the guest's accesses.
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
