//! The RAM of a live machine.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use address::Gpa;
use introspect::{PhysMemory, Unreadable};
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MemoryRegionAddress, VolatileMemory,
};

use super::{GuestMemory, Unwritable};

/// The size of a word of RAM.
const WORD_BYTES: usize = size_of::<u64>();
/// Up to this length, reads by words take fewer instructions than the copy of a range, which takes some 200 before its first byte.
const FEW_BYTES: usize = 64;

/// The machine's RAM. Clones share the memory.
#[derive(Clone, Debug)]
pub struct KvmMemory(pub GuestMemoryMmap);

impl KvmMemory {
    /// The 8 bytes at `gpa`, if aligned and within RAM.
    fn word(&self, gpa: Gpa) -> Option<&AtomicU64> {
        if !gpa.0.is_multiple_of(8) {
            return None;
        }
        let (region, at) = self.region(gpa)?;
        let offset = usize::try_from(at.0).ok()?;
        region.get_atomic_ref(offset).ok()
    }

    /// The region of RAM with the byte at `gpa`, and the byte's offset. RAM has two or three regions: a look at each takes a third of the
    /// instructions of the search by `to_region_addr`.
    fn region(&self, gpa: Gpa) -> Option<(&GuestRegionMmap, MemoryRegionAddress)> {
        self.0.iter().find_map(|region| {
            let offset = gpa.0.checked_sub(region.start_addr().0)?;
            (offset < region.len()).then_some((region, MemoryRegionAddress(offset)))
        })
    }

    /// Fills `buf` by the aligned words that hold its bytes; `None` if one of them is not within the same region of RAM.
    fn read_words(&self, gpa: Gpa, buf: &mut [u8]) -> Option<()> {
        let skipped = usize::try_from(gpa.0 % WORD_BYTES as u64).ok()?;
        let (region, at) = self.region(Gpa(gpa.0 - skipped as u64))?;
        let words = (skipped + buf.len()).div_ceil(WORD_BYTES);
        let words = region.get_slice(at, words * WORD_BYTES).ok()?;
        let word = |offset| {
            let word = words.get_atomic_ref::<AtomicU64>(offset).ok()?;
            Some(word.load(Ordering::Relaxed).to_le_bytes())
        };
        let (mut rest, mut offset) = (buf, 0);
        if skipped > 0 {
            let first = word(0)?;
            let (_, first) = first.split_at_checked(skipped)?;
            let (part, behind) = rest.split_at_mut(first.len().min(rest.len()));
            part.copy_from_slice(first.get(..part.len())?);
            (rest, offset) = (behind, WORD_BYTES);
        }
        let (whole, end) = rest.as_chunks_mut::<WORD_BYTES>();
        for chunk in whole {
            *chunk = word(offset)?;
            offset += WORD_BYTES;
        }
        if !end.is_empty() {
            end.copy_from_slice(word(offset)?.get(..end.len())?);
        }
        Some(())
    }
}

impl PhysMemory for KvmMemory {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let len = buf.len();
        if let Ok(bytes) = <&mut [u8; WORD_BYTES]>::try_from(&mut *buf)
            && let Some(word) = self.word(gpa)
        {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
            return Ok(());
        }
        if len <= FEW_BYTES && self.read_words(gpa, buf).is_some() {
            return Ok(());
        }
        self.0
            .read_slice(buf, GuestAddress(gpa.0))
            .map_err(|_| Unreadable { gpa, len })
    }

    /// Page tables and stacks consist of 64-bit words; a copy of any length costs several times as much.
    fn read_u64(&self, gpa: Gpa) -> Result<u64, Unreadable> {
        if let Some(word) = self.word(gpa) {
            return Ok(word.load(Ordering::Relaxed));
        }
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl GuestMemory for KvmMemory {
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable> {
        let failed = Unwritable {
            gpa,
            len: bytes.len(),
        };
        if !self.0.check_range(GuestAddress(gpa.0), bytes.len()) {
            return Err(failed);
        }
        self.0
            .write_slice(bytes, GuestAddress(gpa.0))
            .map_err(|_| failed)
    }

    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
        let failed = Unwritable {
            gpa,
            len: new.len(),
        };
        let slice = self
            .0
            .get_slice(GuestAddress(gpa.0), new.len())
            .map_err(|_| failed)?;
        macro_rules! exchange {
            ($atomic:ty, $value:ty) => {{
                let place = slice.get_atomic_ref::<$atomic>(0).map_err(|_| failed)?;
                let old = <$value>::from_le_bytes(old.try_into().map_err(|_| failed)?);
                let new = <$value>::from_le_bytes(new.try_into().map_err(|_| failed)?);
                place
                    .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            }};
        }
        Ok(match new.len() {
            1 => exchange!(AtomicU8, u8),
            2 => exchange!(AtomicU16, u16),
            4 => exchange!(AtomicU32, u32),
            8 => exchange!(AtomicU64, u64),
            _ => return Err(failed),
        })
    }

    fn ranges(&self) -> Vec<Range<Gpa>> {
        let range = |region: &GuestRegionMmap| {
            let start = region.start_addr().0;
            Gpa(start)..Gpa(start + region.len())
        };
        self.0.iter().map(range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: usize = 0x2000;

    #[test]
    fn short_read_has_the_bytes_of_a_long_one_at_each_alignment_and_across_regions() {
        let half = END / 2;
        let regions = [(GuestAddress(0), half), (GuestAddress(half as u64), half)];
        let memory = GuestMemoryMmap::from_ranges(&regions).expect("memory");
        let memory = KvmMemory(memory);
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().step_by(7).take(END).collect();
        memory.write(Gpa(0), &bytes).expect("memory");
        let near = |at: usize| at - 2 * FEW_BYTES..at;
        for start in (0..WORD_BYTES).chain(near(half)).chain(near(END)) {
            for len in 0..=FEW_BYTES + WORD_BYTES {
                let mut read = vec![0; len];
                let result = memory.read(Gpa(start as u64), &mut read);
                match bytes.get(start..start + len) {
                    Some(expected) => assert_eq!(read, expected, "{len} bytes at {start:#x}"),
                    None => assert!(result.is_err(), "{len} bytes at {start:#x}"),
                }
            }
        }
    }

    #[test]
    fn read_at_the_end_of_the_address_space_fails() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), END)]).expect("memory");
        let memory = KvmMemory(memory);
        for gpa in [u64::MAX, u64::MAX - 7, END as u64] {
            assert!(memory.read(Gpa(gpa), &mut [0; 9]).is_err(), "{gpa:#x}");
        }
    }
}
