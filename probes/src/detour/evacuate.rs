//! Leaving the region: whoever is in a copy, running or interrupted, goes on where he would be without it.
//!
//! A thread in a copy stands at its instruction or at the jump behind it, and each has one counterpart in the original.
//! Its address is in the RIP of a vCPU, or, if it was interrupted, in the guest's memory: in the frame on its stack, or
//! wherever the guest has noted it since. Those that are found in memory are replaced. That is right for a frame, and for any
//! note of it too: it is what would be there had the region not been.
//!
//! A detour pushes the flags. Who is interrupted between that and their pop has the frame of the interrupt changed, so
//! that it returns with the flags popped. One that records has interrupts off where it has pushed more: a vCPU there has
//! it popped by its own thread.

use std::collections::{BTreeMap, BTreeSet};

use introspect::{Gpa, Gva, PagingState, walk};
use vmm::{Destination, Pop};

use super::WayOut;
use super::region::Region;
use super::switch::Switch;
use crate::guest::{GuestError, GuestMemory, Paused};

/// So much is read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Moves every thread out of `region`, and takes it away; `close` takes away what leads there from elsewhere. Says whether that could be done: who cannot be moved stays,
/// and the region with him.
pub(super) fn evacuate(
    paused: &dyn Paused,
    memory: &dyn GuestMemory,
    region: &Region,
    close: impl FnOnce() -> Result<(), GuestError>,
) -> Result<bool, GuestError> {
    let ways_out: BTreeMap<u64, WayOut> =
        region.ways_out().map(|(from, way)| (from.0, way)).collect();
    if !replace_in_memory(memory, region, &ways_out)? {
        return Ok(false);
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
    Ok(true)
}

/// The processor aligns its frames, so that an address in one is aligned. Says whether all that was found was replaced.
fn replace_in_memory(
    memory: &dyn GuestMemory,
    region: &Region,
    ways_out: &BTreeMap<u64, WayOut>,
) -> Result<bool, GuestError> {
    let mut all = true;
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
                if code.contains(&value) && uninterrupted.contains(&value) {
                    // An NMI's frame, or what is left of one.
                    all = false;
                } else if code.contains(&value)
                    && let Some(way) = ways_out.get(&value)
                {
                    let place = Gpa(at + 8 * index);
                    let is_right = match way.pops {
                        [] => true,
                        [Pop::Flags] => pop_flags(memory, &region.kernel.paging, place)?,
                        // Interrupts are off there. It is an NMI's frame, or what is left of one.
                        _ => false,
                    };
                    if !is_right {
                        all = false;
                        continue;
                    }
                    memory.compare_exchange(
                        place,
                        &value.to_le_bytes(),
                        &way.to.0.to_le_bytes(),
                    )?;
                }
            }
            at += chunk.len() as u64;
        }
    }
    Ok(all)
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

/// Makes the interrupt whose frame has its RIP at `place` return as if the flags that were pushed had been popped. What
/// is no frame stays as it is. Says whether it is known what it is, and where its stack is.
fn pop_flags(
    memory: &dyn GuestMemory,
    paging: &PagingState,
    place: Gpa,
) -> Result<bool, GuestError> {
    if place.page_offset() + 8 * (RSP + 1) > PAGE_BYTES {
        // The page that follows on the stack may be any.
        return Ok(false);
    }
    let at = |word: u64| place.wrapping_add(8 * word);
    let is_flags = |word: u64| word & RFLAGS_FIXED != 0 && word < RFLAGS_END;
    let [selector, _, ..] = memory.read_u64(at(CS))?.to_le_bytes();
    let rsp = memory.read_u64(at(RSP))?;
    let in_kernel = selector & 3 == 0 && selector != 0;
    if !in_kernel || !is_flags(memory.read_u64(at(RFLAGS))?) || !rsp.is_multiple_of(8) {
        return Ok(true);
    }
    let Ok(stack) = walk(&memory, paging, Gva(rsp)) else {
        return Ok(false);
    };
    let Ok(flags) = memory.read_u64(stack.gpa) else {
        return Ok(false);
    };
    if !is_flags(flags) {
        return Ok(true);
    }
    memory.write(at(RFLAGS), &flags.to_le_bytes())?;
    memory.write(at(RSP), &rsp.wrapping_add(8).to_le_bytes())?;
    Ok(true)
}
