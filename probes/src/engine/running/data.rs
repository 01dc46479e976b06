//! Watched data in the memory of the running kernel: one piece, or one for each processor.

use address::{Gpa, Gva, PAGE_BYTES};
use inspect::{DirectMap, KernelView, PerCpuOffsets};
use introspect::walk;
use manifest::WatchedAccess;
use text::Spot;

use super::Running;
use super::located::Located;
use crate::engine::watch::table::WatchedBytes;
use crate::resolve::{MemoryOwner, Place, WORDS_MAX, words};

/// Why watched data has no place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotInMemory {
    #[error("{at} is not in the kernel's image")]
    Image { at: Gva },
    #[error("{at} is not in memory")]
    Memory { at: Gva },
    #[error(
        "{at} is not in the kernel's map of all memory, where slabs and pages have their addresses: other mappings change"
    )]
    Mapped { at: Gva },
    #[error(
        "{at} is in the kernel's image, which the kernel accesses by other addresses: watch {image}"
    )]
    InImage { at: Gva, image: Gva },
    #[error("the kernel's table of its processors' data cannot be read")]
    NoTable,
    #[error(
        "the data of processor {cpu} is at {at}, and not at the same place of a page as in the kernel's image"
    )]
    Moved { cpu: u64, at: Gva },
    #[error(
        "the kernel has prepared for {count} processors, whose copies have more than {WORDS_MAX} words in all"
    )]
    TooMany { count: u64 },
}

impl Running {
    /// The pieces of the `len` watched bytes of `place`.
    pub(crate) fn watched_bytes(
        &self,
        place: &Place,
        len: usize,
        access: WatchedAccess,
        located: Located,
    ) -> Result<Vec<WatchedBytes>, NotInMemory> {
        let piece = |at, spot, copy| WatchedBytes {
            at,
            spot,
            len,
            access,
            copy,
        };
        let at = place.ip;
        match place.owner {
            MemoryOwner::Kernel => {
                let gpa = self.gpa_of(at, located).ok_or(NotInMemory::Image { at })?;
                let running = located.running_at(place, at);
                Ok(vec![piece(running, Spot::contiguous(gpa), None)])
            }
            MemoryOwner::Module(_) | MemoryOwner::Task(_) => {
                let spot = self.spot_by_tables(at, len);
                let spot = spot.ok_or(NotInMemory::Memory { at })?;
                Ok(vec![piece(at, spot, None)])
            }
            MemoryOwner::Nobody => {
                let found = self.spot_by_tables(at, len);
                let map = self.with_view(DirectMap::find).flatten();
                let is_mapped =
                    |spot: &Spot| map.is_some_and(|map| map.start.wrapping_add(spot.gpa.0) == at);
                let spot = found.filter(is_mapped);
                let spot = spot.ok_or(NotInMemory::Mapped { at })?;
                if let Some(image) = self.in_image(spot.gpa, located) {
                    return Err(NotInMemory::InImage { at, image });
                }
                Ok(vec![piece(at, spot, None)])
            }
            MemoryOwner::Processors => {
                let copies = self.with_view(|view| copies(view, at, len));
                let copies = copies.ok_or(NotInMemory::NoTable)??;
                let pieces = (0..).zip(copies).map(|(cpu, at)| {
                    let spot = self.spot_by_tables(at, len);
                    let spot = spot.ok_or(NotInMemory::Memory { at })?;
                    Ok(piece(at, spot, Some(cpu)))
                });
                pieces.collect()
            }
        }
    }

    /// The run-time address in the kernel's image of the byte at `gpa`, if the image has the byte.
    fn in_image(&self, gpa: Gpa, located: Located) -> Option<Gva> {
        let image = self.kernel.image();
        let start = self.gpa_of(image.start, located)?;
        let offset = gpa.0.checked_sub(start.0)?;
        let linked = image.start.wrapping_add(offset);
        let running = linked.wrapping_add(located.slide.cast_unsigned());
        image.contains(&linked).then_some(running)
    }

    /// The guest-physical location of the `len` bytes at the run-time address `at`, whose pages may lie anywhere.
    fn spot_by_tables(&self, at: Gva, len: usize) -> Option<Spot> {
        let paging = self.modules.paging()?;
        let memory = |at| {
            let gpa = walk(&self.planter, &paging, at).ok()?.gpa;
            let is_there = self.planter.read_own(gpa, &mut [0]).is_ok();
            is_there.then_some(gpa)
        };
        let first = Spot {
            gpa: memory(at)?,
            beyond: None,
        };
        if len <= first.room() {
            return Some(first);
        }
        let next = at.page().checked_add(PAGE_BYTES)?;
        Some(Spot {
            beyond: Some(memory(next)?),
            ..first
        })
    }
}

/// The addresses of the processors' copies of the per-CPU variable at `linked`, in the order of the processors.
fn copies(view: &KernelView<'_>, linked: Gva, len: usize) -> Result<Vec<Gva>, NotInMemory> {
    let offsets = PerCpuOffsets::find(view).ok_or(NotInMemory::NoTable)?;
    let count = offsets.count;
    let words = count.saturating_mul(words(len) as u64);
    if words > WORDS_MAX as u64 {
        return Err(NotInMemory::TooMany { count });
    }
    let copy = |cpu| {
        let copy = offsets.copy_of(view, linked, cpu);
        let at = copy.map_err(|_| NotInMemory::NoTable)?;
        // hyprobe has checked the page of the section, for the pages of all copies.
        match at.page_offset() == linked.page_offset() {
            true => Ok(at),
            false => Err(NotInMemory::Moved { cpu, at }),
        }
    };
    (0..count).map(copy).collect()
}
