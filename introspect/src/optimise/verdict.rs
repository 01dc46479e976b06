//! The verdict on an address.

use std::ops::Range;

use address::Gva;
use iced_x86::Mnemonic;
use thiserror::Error;

use super::exceptions::Exceptions;
use super::movable::{Fixed, Motion, motion};
use super::retpoline::is_retpoline;
use super::survey::Survey;
use super::sweep::function_at;
use super::unfit::Unfit;
use crate::insn::{MAX_LENGTH_BYTES, decode};
use crate::{PatchKind, PatchSites, PatchTime};

/// `jmp rel32`.
pub const JUMP_BYTES: usize = 5;
/// The longest region: four bytes, and one more instruction.
pub const MAX_REGION_BYTES: usize = JUMP_BYTES - 1 + MAX_LENGTH_BYTES;

/// A jump can be put here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimisable {
    /// Bytes from the jump to the next instruction left in place: [`JUMP_BYTES`] to
    /// [`MAX_REGION_BYTES`].
    pub region_len: usize,
    /// The number of instructions in the detour. With one instruction, no thread can be inside the
    /// region. If the last instruction does not continue to the next, padding behind the last
    /// instruction is in the region, but does not count.
    pub instructions: usize,
    /// The detour's last instruction never goes on to the next: no jump back is needed.
    pub ends: bool,
    /// The kernel patches the region once, during boot: the verdict holds for the bytes at hand.
    pub boot_patched: bool,
}

/// Why no jump can be put at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Error)]
pub enum WhyNot {
    /// No function is known at the address.
    #[error("no function is known there")]
    NoFunction,
    /// The code is unfit for jumps.
    #[error("this code {}", .0.text())]
    Unfit(Unfit),
    /// The function has bytes without an instruction.
    #[error(
        "the function cannot be decoded from {at} on, and may branch to what a jump would replace"
    )]
    Undecodable {
        /// The address of the first undecodable byte.
        at: Gva,
    },
    /// The rest of the function, or of the executable code, is shorter than a jump.
    #[error("the code ends after {bytes} bytes, and a jump takes 5")]
    TooShort {
        /// The number of bytes left.
        bytes: usize,
    },
    /// An indirect jump may go anywhere in the function.
    #[error(
        "an indirect jump counts its targets from {from}, and may go to any of the instructions"
    )]
    ComputedJump {
        /// An address in the function.
        from: Gva,
    },
    /// Execution may arrive in the middle of the instructions under the jump.
    #[error("something may branch to {to}, in the middle of what a jump would replace")]
    BranchInto {
        /// The address of the arrival.
        to: Gva,
    },
    /// The kernel has an exception-table entry for an instruction.
    #[error("the instruction at {at} may fault, and the kernel looks its address up then")]
    MayFault {
        /// The instruction.
        at: Gva,
    },
    /// The kernel has no readable exception table.
    #[error("the kernel's exception table cannot be read")]
    NoExceptionTable,
    /// The kernel patches an instruction, possibly at any time.
    #[error("the kernel patches the instruction at {at} while it runs ({kind:?})")]
    Patched {
        /// The address of the patch site.
        at: Gva,
        /// The kind of patching.
        kind: PatchKind,
    },
    /// A call would return to the middle of the instructions under the jump, or be one of several
    /// instructions.
    #[error("there is a call at {at}, among other instructions that a jump would replace")]
    Call {
        /// The call.
        at: Gva,
    },
    /// A detour cannot hold an instruction.
    #[error("the instruction at {at} {}", .why.text())]
    Fixed {
        /// The instruction.
        at: Gva,
        /// Why.
        why: Fixed,
    },
}

impl WhyNot {
    /// The reason without the address, as one word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoFunction => "no-function",
            Self::Unfit(why) => why.name(),
            Self::Undecodable { .. } => "undecodable",
            Self::TooShort { .. } => "too-short",
            Self::ComputedJump { .. } => "computed-jump",
            Self::BranchInto { .. } => "branch-into",
            Self::MayFault { .. } => "may-fault",
            Self::NoExceptionTable => "no-exception-table",
            Self::Patched { kind, .. } => match kind {
                PatchKind::Ftrace => "patched-by-ftrace",
                PatchKind::JumpLabel => "jump-label",
                PatchKind::StaticCall => "static-call",
                PatchKind::SmpLock => "lock-prefix",
                _ => "patched",
            },
            Self::Call { .. } => "call",
            Self::Fixed { why, .. } => why.name(),
        }
    }
}

impl Survey {
    /// Whether a jump can replace the instructions from `at` on; an instruction must begin at `at`.
    /// `code` holds the current bytes at `at`: [`MAX_REGION_BYTES`] bytes, fewer at the end of the
    /// text. `sites` are at the same addresses as the survey.
    ///
    /// # Errors
    ///
    /// The reason against a jump; of several reasons, the first in the order of the checks.
    pub fn verdict(&self, sites: &PatchSites, at: Gva, code: &[u8]) -> Result<Optimisable, WhyNot> {
        let (function, exceptions) = match self.known(at) {
            Err(WhyNot::Unfit(Unfit::Thunk)) if is_retpoline(code, at) => {
                return self.verdict_on_retpoline(sites, at);
            }
            known => known?,
        };
        let left = usize::try_from(function.end.0 - at.0).unwrap_or(usize::MAX);
        let code = &code[..code.len().min(left)];
        let region = region(code, at)?;
        let len = region.region_len as u64;
        let boot_patched = untouched(exceptions, sites, at, len)?;
        if let Some(to) = self.arrivals.inside(&(at..at.wrapping_add(len))) {
            return Err(WhyNot::BranchInto { to });
        }
        // A region of one instruction has no inner instruction as a target.
        if region.instructions > 1
            && let Some(from) = first_in(&self.counted_from, function)
        {
            return Err(WhyNot::ComputedJump { from });
        }
        Ok(Optimisable {
            boot_patched,
            ..region
        })
    }

    /// Whether a jump to a detour can replace the ftrace call at `call`, while the call is switched
    /// off. The detour continues behind the next instruction, `then`.
    ///
    /// # Errors
    ///
    /// Why not, as for a [verdict](Self::verdict).
    pub fn verdict_on_call(
        &self,
        sites: &PatchSites,
        call: Gva,
        then: &[u8],
    ) -> Result<(), WhyNot> {
        let at = call.wrapping_add(JUMP_BYTES as u64);
        let (_, exceptions) = self.known(call)?;
        let then = decode(then, at).map_err(|_| WhyNot::TooShort { bytes: JUMP_BYTES })?;
        match motion(&then).map_err(|why| WhyNot::Fixed { at, why })? {
            Motion::Through | Motion::Ends => (),
            Motion::Call => return Err(WhyNot::Call { at }),
        }
        untouched(exceptions, sites, at, then.len() as u64)?;
        match self.arrivals.inside(&(call..at)) {
            Some(to) => Err(WhyNot::BranchInto { to }),
            None => Ok(()),
        }
    }

    /// Whether a detour, reached through the first byte like an `int3`, can execute the instruction
    /// at `at`; an instruction must begin at `at`. No branch can go to the middle of one byte.
    /// `code` holds the current bytes at `at`; a retpoline is recognised only if `code` reaches to
    /// the target of the call.
    ///
    /// # Errors
    ///
    /// Why not, as for a [verdict](Self::verdict).
    pub fn verdict_on_byte(&self, sites: &PatchSites, at: Gva, code: &[u8]) -> Result<(), WhyNot> {
        let (_, exceptions) = match self.fit(at) {
            Err(WhyNot::Unfit(Unfit::Thunk)) if is_retpoline(code, at) => {
                return self.verdict_on_retpoline(sites, at).map(|_| ());
            }
            known => known?,
        };
        let decoded = decode(code, at).map_err(|_| WhyNot::TooShort { bytes: 0 })?;
        match motion(&decoded).map_err(|why| WhyNot::Fixed { at, why })? {
            Motion::Through | Motion::Ends => (),
            Motion::Call => return Err(WhyNot::Call { at }),
        }
        untouched(exceptions, sites, at, decoded.len() as u64).map(|_| ())
    }

    /// Whether a jump can replace the call at `at`, the first instruction of a retpoline. A
    /// detour's call is also followed by a trap for speculation, and a detour jumps back behind the
    /// call, although a retpoline never returns there.
    fn verdict_on_retpoline(&self, sites: &PatchSites, at: Gva) -> Result<Optimisable, WhyNot> {
        let len = JUMP_BYTES as u64;
        let exceptions = self.exceptions.as_ref().ok_or(WhyNot::NoExceptionTable)?;
        let boot_patched = untouched(exceptions, sites, at, len)?;
        match self.arrivals.inside(&(at..at.wrapping_add(len))) {
            Some(to) => Err(WhyNot::BranchInto { to }),
            None => Ok(Optimisable {
                region_len: JUMP_BYTES,
                instructions: 1,
                ends: false,
                boot_patched,
            }),
        }
    }

    /// The function at `at`, all of which is understood, and the kernel's exceptions.
    fn known(&self, at: Gva) -> Result<(&Range<Gva>, &Exceptions), WhyNot> {
        let (function, exceptions) = self.fit(at)?;
        match first_in(&self.undecodable, function) {
            Some(at) => Err(WhyNot::Undecodable { at }),
            None => Ok((function, exceptions)),
        }
    }

    /// The function at `at`, if the code is fit for a jump, and the kernel's exceptions.
    fn fit(&self, at: Gva) -> Result<(&Range<Gva>, &Exceptions), WhyNot> {
        let function = function_at(&self.functions, at).ok_or(WhyNot::NoFunction)?;
        if let Some((_, why)) = self.unfit.iter().find(|(range, _)| range.contains(&at)) {
            return Err(WhyNot::Unfit(*why));
        }
        let exceptions = self.exceptions.as_ref().ok_or(WhyNot::NoExceptionTable)?;
        Ok((function, exceptions))
    }
}

/// Checks that the kernel neither patches the `len` bytes at `at` at run time nor looks their
/// addresses up. Returns whether the kernel patches the bytes at boot.
fn untouched(
    exceptions: &Exceptions,
    sites: &PatchSites,
    at: Gva,
    len: u64,
) -> Result<bool, WhyNot> {
    if let Some(at) = exceptions.within(at, len) {
        return Err(WhyNot::MayFault { at });
    }
    let mut boot_patched = false;
    for site in sites.all_overlapping(at, len) {
        // The kernel restores a lock prefix when switching on a second processor, at any time.
        if site.kind.when() == PatchTime::Runtime || site.kind == PatchKind::SmpLock {
            let (at, kind) = (site.address, site.kind);
            return Err(WhyNot::Patched { at, kind });
        }
        boot_patched = true;
    }
    Ok(boot_patched)
}

/// The first address of `places`, which are in order, inside `range`.
fn first_in(places: &[Gva], range: &Range<Gva>) -> Option<Gva> {
    let first = places.partition_point(|place| *place < range.start);
    places
        .get(first)
        .copied()
        .filter(|place| *place < range.end)
}

/// The whole instructions under a jump at `at`, judged by themselves.
fn region(code: &[u8], at: Gva) -> Result<Optimisable, WhyNot> {
    let mut found = Optimisable {
        region_len: 0,
        instructions: 0,
        ends: false,
        boot_patched: false,
    };
    while found.region_len < JUMP_BYTES {
        let short = WhyNot::TooShort {
            bytes: found.region_len,
        };
        let here = at.wrapping_add(found.region_len as u64);
        let rest = code.get(found.region_len..).unwrap_or_default();
        let decoded = decode(rest, here).map_err(|_| short)?;
        let is_padding = matches!(
            decoded.instruction().mnemonic(),
            Mnemonic::Nop | Mnemonic::Int3
        );
        if found.ends && !is_padding {
            return Err(short);
        }
        found.region_len += decoded.len();
        if found.ends {
            continue;
        }
        found.instructions += 1;
        match motion(&decoded).map_err(|why| WhyNot::Fixed { at: here, why })? {
            Motion::Through => (),
            Motion::Ends => found.ends = true,
            Motion::Call if found.region_len >= JUMP_BYTES && found.instructions == 1 => (),
            Motion::Call => return Err(WhyNot::Call { at: here }),
        }
    }
    Ok(found)
}
