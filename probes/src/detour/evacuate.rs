//! Leaving the region: whoever is in a copy, running or interrupted, goes on where he would be without it.
//!
//! A thread in a copy stands at its instruction or at the jump behind it, and each has one counterpart in the original.
//! Its address is in the RIP of a vCPU, or, if it was interrupted, in the guest's memory: in the frame on its stack, or
//! wherever the guest has noted it since. Those that are found in memory are replaced. That is right for a frame, and for any
//! note of it too: it is what would be there had the region not been.

use std::collections::BTreeMap;

use introspect::Gpa;

use super::region::Region;
use crate::guest::{GuestError, GuestMemory, Paused};

/// So much is read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Moves every thread out of `region`, and takes it away.
pub(super) fn evacuate(
    paused: &dyn Paused,
    memory: &dyn GuestMemory,
    region: &Region,
) -> Result<(), GuestError> {
    let ways_out: BTreeMap<u64, u64> = region
        .copies
        .ways_out()
        .map(|(from, to)| (from.0, to.0))
        .collect();
    replace_in_memory(memory, region, &ways_out)?;
    region.unlink(memory)?;
    paused.move_vcpus(ways_out);
    paused.unmap_detour()
}

/// The processor aligns its frames, so that an address in one is aligned.
fn replace_in_memory(
    memory: &dyn GuestMemory,
    region: &Region,
    ways_out: &BTreeMap<u64, u64>,
) -> Result<(), GuestError> {
    let code = region.code();
    let mut chunk = vec![0; CHUNK_BYTES];
    for range in memory.ranges() {
        let mut at = range.start.0;
        while at < range.end.0 {
            let left = usize::try_from(range.end.0 - at).unwrap_or(CHUNK_BYTES);
            let chunk = &mut chunk[..left.min(CHUNK_BYTES)];
            memory.read(Gpa(at), chunk)?;
            for (word, index) in chunk.chunks_exact(8).zip(0u64..) {
                let value = word.try_into().map_or(0, u64::from_le_bytes);
                if code.contains(&value)
                    && let Some(out) = ways_out.get(&value)
                {
                    let place = Gpa(at + 8 * index);
                    memory.compare_exchange(place, &value.to_le_bytes(), &out.to_le_bytes())?;
                }
            }
            at += chunk.len() as u64;
        }
    }
    Ok(())
}
