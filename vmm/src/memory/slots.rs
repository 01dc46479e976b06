//! The KVM memory slots: which ranges of RAM are read-only.
//!
//! KVM cannot change a slot's size or flags in place. Between removing a slot and adding its successor, the guest's RAM
//! is missing. A new plan is therefore applied only while every vCPU is paused, and changes only the slots that differ.

use std::collections::BTreeMap;

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;

use super::detour::DetourMemory;
use super::error::SlotError;
use super::page_range::PageRange;
use super::ram::RamRegion;

/// A KVM slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    gpa: u64,
    bytes: u64,
    host: u64,
    read_only: bool,
}

/// The slots in force.
#[derive(Debug)]
pub(crate) struct Slots {
    regions: Vec<RamRegion>,
    in_force: BTreeMap<Slot, u32>,
    available: usize,
    /// The read-only ranges of RAM, sorted and disjoint.
    read_only: Vec<PageRange>,
    /// Lies above all RAM.
    detour: Option<DetourMemory>,
    /// Pages of RAM that KVM maps by another host address, sorted.
    views: Vec<RamRegion>,
}

impl Slots {
    pub(crate) fn new(regions: Vec<RamRegion>, available: usize) -> Self {
        Self {
            regions,
            in_force: BTreeMap::new(),
            available,
            read_only: Vec::new(),
            detour: None,
            views: Vec::new(),
        }
    }

    /// Makes exactly `read_only` (sorted, disjoint) read-only in RAM. Called with every vCPU paused, or before any vCPU has run.
    pub(crate) fn apply(&mut self, vm: &VmFd, read_only: &[PageRange]) -> Result<(), SlotError> {
        let (detour, views) = (self.detour.clone(), self.views.clone());
        self.put_in_force(vm, read_only, &views, detour.as_ref())?;
        self.read_only = read_only.to_vec();
        Ok(())
    }

    /// Makes KVM map exactly these pages of RAM (sorted) by the given host addresses, which share the contents of RAM and stay mapped.
    /// Returns the former pages. Called with every vCPU paused.
    pub(crate) fn set_views(
        &mut self,
        vm: &VmFd,
        views: Vec<RamRegion>,
    ) -> Result<Vec<RamRegion>, SlotError> {
        let (detour, read_only) = (self.detour.clone(), self.read_only.clone());
        self.put_in_force(vm, &read_only, &views, detour.as_ref())?;
        Ok(std::mem::replace(&mut self.views, views))
    }

    /// Adds the slots of detour memory, for the lifetime of the machine. Called with every vCPU paused.
    pub(crate) fn set_detour(&mut self, vm: &VmFd, detour: &DetourMemory) -> Result<(), SlotError> {
        let (read_only, views) = (self.read_only.clone(), self.views.clone());
        let put = self.put_in_force(vm, &read_only, &views, Some(detour));
        match put {
            Ok(()) => self.detour = Some(detour.clone()),
            // KVM may already use a slot of `detour`. The forgotten clone keeps the mapping, so the host never reuses its addresses.
            Err(_) => std::mem::forget(detour.clone()),
        }
        put
    }

    pub(crate) fn detour(&self) -> Option<&DetourMemory> {
        self.detour.as_ref()
    }

    fn put_in_force(
        &mut self,
        vm: &VmFd,
        read_only: &[PageRange],
        views: &[RamRegion],
        detour: Option<&DetourMemory>,
    ) -> Result<(), SlotError> {
        let mut regions = with_views(&self.regions, views);
        let mut read_only = read_only.to_vec();
        if let Some(detour) = detour {
            regions.extend(detour.region());
            read_only.push(detour.read_only());
        }
        let wanted = plan(&regions, &read_only);
        if wanted.len() > self.available {
            return Err(SlotError::TooMany {
                needed: wanted.len(),
                available: self.available,
            });
        }
        let outdated: Vec<(Slot, u32)> = self
            .in_force
            .iter()
            .filter(|(slot, _)| wanted.binary_search(slot).is_err())
            .map(|(slot, id)| (*slot, *id))
            .collect();
        for (slot, id) in outdated {
            set(vm, id, slot, 0)?;
            self.in_force.remove(&slot);
        }
        let used: std::collections::BTreeSet<u32> = self.in_force.values().copied().collect();
        let mut free = (0..).filter(|id| !used.contains(id));
        for slot in wanted {
            if !self.in_force.contains_key(&slot)
                && let Some(id) = free.next()
            {
                set(vm, id, slot, slot.bytes)?;
                self.in_force.insert(slot, id);
            }
        }
        Ok(())
    }
}

/// Cuts the views (sorted, disjoint, each within a region) out of the regions, and adds the views. Returns the regions, sorted.
fn with_views(regions: &[RamRegion], views: &[RamRegion]) -> Vec<RamRegion> {
    let mut cut = Vec::with_capacity(regions.len() + 2 * views.len());
    for region in regions {
        let end = region.gpa + region.bytes;
        let mut at = region.gpa;
        let part = |from: u64, to: u64| RamRegion {
            gpa: from,
            bytes: to - from,
            host: region.host + (from - region.gpa),
        };
        for view in views
            .iter()
            .filter(|view| (region.gpa..end).contains(&view.gpa))
        {
            cut.push(part(at, view.gpa));
            cut.push(*view);
            at = view.gpa + view.bytes;
        }
        cut.push(part(at, end));
    }
    cut.retain(|region| region.bytes > 0);
    cut
}

/// Cuts the regions at the edges of the read-only ranges. Returns the slots, sorted.
fn plan(regions: &[RamRegion], read_only: &[PageRange]) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(regions.len() + 2 * read_only.len());
    for region in regions {
        let end = region.gpa + region.bytes;
        let mut at = region.gpa;
        let mut push = |from: u64, to: u64, read_only: bool| {
            if from < to {
                slots.push(Slot {
                    gpa: from,
                    bytes: to - from,
                    host: region.host + (from - region.gpa),
                    read_only,
                });
            }
        };
        for range in read_only {
            let (start, stop) = (range.start.0.max(at), range.end.0.min(end));
            if start < stop {
                push(at, start, false);
                push(start, stop, true);
                at = stop;
            }
        }
        push(at, end, false);
    }
    slots.sort_unstable();
    slots
}

#[expect(unsafe_code, reason = "tells KVM about host memory")]
fn set(vm: &VmFd, id: u32, slot: Slot, bytes: u64) -> Result<(), SlotError> {
    let region = kvm_userspace_memory_region {
        slot: id,
        flags: if slot.read_only { KVM_MEM_READONLY } else { 0 },
        guest_phys_addr: slot.gpa,
        memory_size: bytes,
        userspace_addr: slot.host,
    };
    // SAFETY: the host range lies within the RAM mapping of this machine, which outlives its VM (`Machine` holds
    // both), is a view of a page of RAM, which `Shared` holds beside the VM, or lies within detour memory, which `Slots` holds until
    // its slots are gone; slots never overlap, since `plan` and `with_views` cut disjoint regions.
    unsafe { vm.set_user_memory_region(region) }.map_err(|source| SlotError::Refused {
        gpa: slot.gpa,
        bytes,
        source,
    })
}

#[cfg(test)]
mod tests {
    use address::Gpa;

    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange {
            start: Gpa(start),
            end: Gpa(end),
        }
    }

    #[test]
    fn ram_is_cut_at_read_only_edges_and_covered_once() {
        let regions = [
            RamRegion {
                gpa: 0,
                bytes: 0x10000,
                host: 0x7000_0000,
            },
            RamRegion {
                gpa: 0x10_0000,
                bytes: 0x4000,
                host: 0x8000_0000,
            },
        ];
        let slots = plan(
            &regions,
            &[
                range(0, 0x1000),
                range(0x3000, 0x5000),
                range(0xf000, 0x10_1000),
            ],
        );
        let bytes = |read_only: bool| -> u64 {
            slots
                .iter()
                .filter(|s| s.read_only == read_only)
                .map(|s| s.bytes)
                .sum()
        };
        assert_eq!(bytes(true), 0x1000 + 0x2000 + 0x1000 + 0x1000);
        assert_eq!(bytes(true) + bytes(false), 0x14000);
        for pair in slots.windows(2) {
            assert!(
                pair[0].gpa + pair[0].bytes <= pair[1].gpa,
                "{pair:x?} overlap"
            );
        }
        for slot in &slots {
            let region = regions
                .iter()
                .find(|r| r.gpa <= slot.gpa && slot.gpa < r.gpa + r.bytes)
                .expect("in RAM");
            assert_eq!(slot.host - region.host, slot.gpa - region.gpa);
        }
    }

    #[test]
    fn views_replace_the_host_addresses_of_their_pages() {
        let region = |gpa, bytes, host| RamRegion { gpa, bytes, host };
        let regions = [
            region(0, 0x4000, 0x7000_0000),
            region(0x10_0000, 0x2000, 0x8000_0000),
        ];
        let views = [
            region(0, 0x1000, 0x1000_0000),
            region(0x2000, 0x1000, 0x2000_0000),
            region(0x10_1000, 0x1000, 0x3000_0000),
        ];
        let expected = [
            views[0],
            region(0x1000, 0x1000, 0x7000_1000),
            views[1],
            region(0x3000, 0x1000, 0x7000_3000),
            region(0x10_0000, 0x1000, 0x8000_0000),
            views[2],
        ];
        assert_eq!(with_views(&regions, &views), expected);
        assert_eq!(with_views(&regions, &[]), regions);
    }

    #[test]
    fn covering_rounds_outwards() {
        assert_eq!(
            PageRange::covering(Gpa(0x1fff), Gpa(0x2001)),
            range(0x1000, 0x3000)
        );
    }
}
