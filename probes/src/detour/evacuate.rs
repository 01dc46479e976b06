//! Leaving the region: whoever is in a copy, running or interrupted, goes on where he would be without it.
//!
//! A thread in a copy stands at its instruction or at the jump behind it, and each has one counterpart in the original.
//! Its address is in the RIP of a vCPU, or, if it was interrupted, in the guest's memory: in the frame on its stack, or
//! wherever the guest has noted it since. Those that are found in memory are replaced. That is right for a frame, and for any
//! note of it too: it is what would be there had the region not been.
//!
//! Who has been counted and has not executed the instruction yet is not moved: at the original a plant would count him
//! again. He runs on, and the region stays for that long. A frame on a stack may be that of an interrupt which has returned;
//! from outside nobody can tell. So what keeps the region is remembered, and when that has gone, it is left.
//!
//! A detour pushes the flags. Who is interrupted between that and their pop has the frame of the interrupt changed, so
//! that it returns with the flags popped. One that records has interrupts off where it has pushed more: a vCPU there has
//! it popped by its own thread.

use std::collections::{BTreeMap, BTreeSet};

use introspect::{Gpa, Gva, PagingState, walk};
use vmm::{Destination, Pop};

use super::region::Region;
use super::switch::Switch;
use super::{Leaves, WayOut};
use crate::guest::{GuestError, GuestMemory, Paused};

/// So much is read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Of the words that keep a region, so many are remembered.
const REMEMBERED: usize = 64;

/// A word of the guest's memory that keeps a region where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keeper {
    at: Gpa,
    value: u64,
}

impl Keeper {
    /// Whether the word is what it was.
    pub(super) fn is_there(&self, memory: &dyn GuestMemory) -> bool {
        memory
            .read_u64(self.at)
            .is_ok_and(|value| value == self.value)
    }
}

/// What has become of a region that was to be left.
#[derive(Debug)]
pub(super) enum Evacuated {
    /// It is gone.
    All,
    /// It is as it was: somebody may be in it who cannot be moved. He is a vCPU, if nothing in memory says so.
    Kept(Vec<Keeper>),
}

/// Moves every thread out of `region`, and takes it away; but not if one cannot be moved. `close` takes away what leads
/// there from elsewhere.
pub(super) fn evacuate(
    paused: &dyn Paused,
    memory: &dyn GuestMemory,
    region: &Region,
    close: impl FnOnce() -> Result<(), GuestError>,
) -> Result<Evacuated, GuestError> {
    let ways_out: BTreeMap<u64, WayOut> =
        region.ways_out().map(|(from, way)| (from.0, way)).collect();
    let runs_on = |rip: &Gva| {
        let way = ways_out.get(&rip.0);
        way.is_some_and(|way| way.leaves == Leaves::RunningOn)
    };
    if paused.vcpu_rips().iter().any(runs_on) {
        return Ok(Evacuated::Kept(Vec::new()));
    }
    let keepers = replace_in_memory(memory, region, &ways_out)?;
    if !keepers.is_empty() {
        return Ok(Evacuated::Kept(keepers));
    }
    close()?;
    region.unlink(memory)?;
    let destination = |way: WayOut| Destination {
        rip: way.to.0,
        pops: way.pops,
        leaves: None,
    };
    let ways_out = ways_out.into_iter();
    let moves = ways_out.map(|(at, way)| (at, destination(way)));
    let from_int3 = region.switch().into_iter().flat_map(Switch::moves);
    paused.move_vcpus(moves.chain(from_int3).collect());
    paused.unmap_detour()?;
    Ok(Evacuated::All)
}

/// The processor aligns its frames, so that an address in one is aligned. Tells what could not be replaced.
fn replace_in_memory(
    memory: &dyn GuestMemory,
    region: &Region,
    ways_out: &BTreeMap<u64, WayOut>,
) -> Result<Vec<Keeper>, GuestError> {
    let mut keepers = Vec::new();
    let code = region.code();
    let uninterrupted: BTreeSet<u64> = region.uninterrupted().map(|at| at.0).collect();
    let mut chunk = vec![0; CHUNK_BYTES];
    for range in memory.ranges() {
        let mut at = range.start.0;
        while at < range.end.0 {
            let left = usize::try_from(range.end.0 - at).unwrap_or(CHUNK_BYTES);
            let chunk = &mut chunk[..left.min(CHUNK_BYTES)];
            memory.read(Gpa(at), chunk)?;
            for (word, index) in chunk.chunks_exact(8).zip(0u64..) {
                let value = word.try_into().map_or(0, u64::from_le_bytes);
                if !code.contains(&value) {
                    continue;
                }
                if uninterrupted.contains(&value) && keepers.len() < REMEMBERED {
                    // An NMI's frame, or what is left of one.
                    let at = Gpa(at + 8 * index);
                    keepers.push(Keeper { at, value });
                } else if let Some(way) = ways_out.get(&value) {
                    let at = Gpa(at + 8 * index);
                    if may_replace(memory, &region.kernel.paging, at, way)? {
                        memory.compare_exchange(
                            at,
                            &value.to_le_bytes(),
                            &way.to.0.to_le_bytes(),
                        )?;
                    } else if keepers.len() < REMEMBERED {
                        keepers.push(Keeper { at, value });
                    }
                }
            }
            at += chunk.len() as u64;
        }
    }
    Ok(keepers)
}

/// Whether the address at `place` may become that of the way out. If it is in a frame, what was pushed has been popped
/// then.
fn may_replace(
    memory: &dyn GuestMemory,
    paging: &PagingState,
    place: Gpa,
    way: &WayOut,
) -> Result<bool, GuestError> {
    if let ([], Leaves::Moved) = (way.pops, way.leaves) {
        return Ok(true);
    }
    let frame = match found(memory, place)? {
        Found::Frame(frame) => frame,
        Found::Note => return Ok(true),
        Found::Unknown => return Ok(false),
    };
    match (way.pops, way.leaves) {
        ([Pop::Flags], Leaves::Moved) => pop_flags(memory, paging, place, &frame),
        // He has been counted. Or interrupts are off there, and it is an NMI's frame, or what is left of one.
        _ => Ok(false),
    }
}

/// From the address in an interrupt's frame, in quadwords.
const CS: u64 = 1;
const RFLAGS: u64 = 2;
const RSP: u64 = 3;
const PAGE_BYTES: u64 = 4096;
/// Always set in RFLAGS.
const RFLAGS_FIXED: u64 = 1 << 1;
/// None of the flags is above.
const RFLAGS_END: u64 = 1 << 22;

/// What an address of our code is a part of, where it lies in memory.
enum Found {
    /// The frame of an interrupt of the kernel's, or what is left of one.
    Frame(Frame),
    /// No frame.
    Note,
    /// It would run over the end of the page: that which follows on the stack may be any.
    Unknown,
}

struct Frame {
    rsp: u64,
}

fn at(place: Gpa, word: u64) -> Gpa {
    place.wrapping_add(8 * word)
}

const fn is_flags(word: u64) -> bool {
    word & RFLAGS_FIXED != 0 && word < RFLAGS_END
}

fn found(memory: &dyn GuestMemory, place: Gpa) -> Result<Found, GuestError> {
    if place.page_offset() + 8 * (RSP + 1) > PAGE_BYTES {
        return Ok(Found::Unknown);
    }
    let [selector, _, ..] = memory.read_u64(at(place, CS))?.to_le_bytes();
    let rflags = memory.read_u64(at(place, RFLAGS))?;
    let rsp = memory.read_u64(at(place, RSP))?;
    let in_kernel = selector & 3 == 0 && selector != 0;
    Ok(if in_kernel && is_flags(rflags) && rsp.is_multiple_of(8) {
        Found::Frame(Frame { rsp })
    } else {
        Found::Note
    })
}

/// Makes the interrupt whose frame has its RIP at `place` return as if the flags that were pushed had been popped. Where
/// none were pushed it stays as it is. Says whether it is known where its stack is.
fn pop_flags(
    memory: &dyn GuestMemory,
    paging: &PagingState,
    place: Gpa,
    frame: &Frame,
) -> Result<bool, GuestError> {
    let Ok(stack) = walk(&memory, paging, Gva(frame.rsp)) else {
        return Ok(false);
    };
    let Ok(flags) = memory.read_u64(stack.gpa) else {
        return Ok(false);
    };
    if !is_flags(flags) {
        return Ok(true);
    }
    memory.write(at(place, RFLAGS), &flags.to_le_bytes())?;
    memory.write(at(place, RSP), &frame.rsp.wrapping_add(8).to_le_bytes())?;
    Ok(true)
}
