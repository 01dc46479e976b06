//! The table of plants for look-ups by vCPUs: never changed, only replaced.

use std::sync::Arc;

use address::{Gpa, Gva};
use arc_swap::ArcSwap;
use introspect::insn::MAX_LENGTH_BYTES;
use text::{AddressMap, Planter, Spot};
use vmm::HardwareBreakpoints;

use crate::debug_registers::{DataRegister, DebugRegisters, DebugUse};
use crate::handler::PlantedInstructions;
use crate::plant::Plant;

/// The number of offsets in a page.
const PAGE_OFFSETS: usize = 4096;

/// All plants. A changed copy shares the unchanged parts, so the cost of a change does not depend on the number of plants.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    by_address: AddressMap<Arc<Plant>>,
    by_gpa: AddressMap<Arc<Plant>>,
    /// The plants on each page, by the first byte.
    by_page: AddressMap<AddressMap<Arc<Plant>>>,
    /// Plants whose instruction may continue on a page that is not contiguous in guest-physical memory.
    torn: Vec<Arc<Plant>>,
    /// The number of plants at each offset in a page: the offset rules out most port writes of the guest's own.
    offsets: Box<[u32; PAGE_OFFSETS]>,
    /// The uses of the debug registers.
    pub(crate) debug: DebugRegisters,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            by_address: AddressMap::default(),
            by_gpa: AddressMap::default(),
            by_page: AddressMap::default(),
            torn: Vec::new(),
            offsets: Box::new([0; PAGE_OFFSETS]),
            debug: [const { None }; 4],
        }
    }
}

impl Table {
    /// Inserts `plant`; replaces a plant at the same address.
    pub(crate) fn put(&mut self, plant: Arc<Plant>) {
        self.remove(plant.at);
        self.offsets[offset(plant.at)] += 1;
        self.by_address.insert_mut(plant.at.0, Arc::clone(&plant));
        if plant.spot.room() < MAX_LENGTH_BYTES && plant.spot != Spot::contiguous(plant.spot.gpa) {
            self.torn.push(Arc::clone(&plant));
        }
        let page = plant.spot.gpa.page().0;
        let mut on_page = self.by_page.get(&page).cloned().unwrap_or_default();
        on_page.insert_mut(plant.at.0, Arc::clone(&plant));
        self.by_page.insert_mut(page, on_page);
        self.by_gpa.insert_mut(plant.spot.gpa.0, plant);
    }

    /// Removes the plant at `at`.
    pub(crate) fn remove(&mut self, at: Gva) {
        let Some(plant) = self.by_address.get(&at.0).cloned() else {
            return;
        };
        self.offsets[offset(at)] -= 1;
        self.by_address.remove_mut(&at.0);
        self.torn.retain(|torn| torn.at != at);
        let page = plant.spot.gpa.page().0;
        let mut on_page = self.by_page.get(&page).cloned().unwrap_or_default();
        on_page.remove_mut(&at.0);
        if on_page.is_empty() {
            self.by_page.remove_mut(&page);
        } else {
            self.by_page.insert_mut(page, on_page);
        }
        let gpa = plant.spot.gpa.0;
        if self.by_gpa.get(&gpa).is_some_and(|other| other.at == at) {
            self.by_gpa.remove_mut(&gpa);
        }
    }

    pub(crate) fn plants(&self) -> impl Iterator<Item = &Arc<Plant>> {
        self.by_address.values()
    }

    /// Whether a plant may be at `rip`, through any mapping.
    pub(crate) fn may_hold(&self, rip: Gva) -> bool {
        self.offsets[offset(rip)] > 0
    }

    pub(crate) fn at(&self, rip: Gva) -> Option<&Arc<Plant>> {
        self.by_address.get(&rip.0)
    }

    /// The sites that have a debug register and no plant.
    pub(crate) fn only(&self) -> impl Iterator<Item = &Arc<Plant>> {
        self.debug.iter().flatten().filter_map(|used| match used {
            DebugUse::Only(plant) => Some(plant),
            DebugUse::StandIn(_) | DebugUse::Data(_) => None,
        })
    }

    /// The instructions that have a debug register.
    pub(crate) fn in_registers(&self) -> impl Iterator<Item = &Arc<Plant>> {
        self.debug.iter().flatten().filter_map(DebugUse::plant)
    }

    /// The number of registers of watched words.
    pub(crate) fn of_data(&self) -> usize {
        let used = self.debug.iter().flatten();
        used.filter(|used| matches!(used, DebugUse::Data(_)))
            .count()
    }

    /// The registers of watched words among `fired`, bits 0 to 3.
    pub(crate) fn written(&self, fired: u8) -> impl Iterator<Item = &DataRegister> {
        let fired = (0..4).filter(move |i| fired & (1 << i) != 0);
        fired.filter_map(|i| match self.debug[i].as_ref()? {
            DebugUse::Data(data) => Some(data),
            DebugUse::Only(_) | DebugUse::StandIn(_) => None,
        })
    }

    /// The conditions of the debug registers.
    pub(crate) fn breakpoints(&self) -> HardwareBreakpoints {
        let used = self.debug.each_ref();
        HardwareBreakpoints(used.map(|used| used.as_ref().map(DebugUse::condition)))
    }

    /// The site at `rip` that has a debug register and no plant.
    pub(crate) fn only_at(&self, rip: Gva) -> Option<&Arc<Plant>> {
        self.only().find(|plant| plant.at == rip)
    }

    pub(crate) fn at_gpa(&self, gpa: Gpa) -> Option<&Arc<Plant>> {
        self.by_gpa.get(&gpa.0)
    }

    /// The addresses of the plants whose first byte is in `len` bytes from `gpa` on.
    pub(crate) fn starting_in(&self, gpa: Gpa, len: usize) -> Vec<Gpa> {
        let bytes = gpa.0..gpa.0.saturating_add(len as u64);
        bytes
            .filter(|at| self.by_gpa.get(at).is_some())
            .map(Gpa)
            .collect()
    }

    /// The plants on the page with the byte at `gpa`.
    pub(crate) fn plants_on(&self, gpa: Gpa) -> impl Iterator<Item = &Arc<Plant>> {
        let page = self.by_page.get(&gpa.page().0);
        page.into_iter().flat_map(|plants| plants.values())
    }

    pub(crate) fn has_plants_on(&self, gpa: Gpa) -> bool {
        self.by_page.get(&gpa.page().0).is_some()
    }

    /// The pages with plants.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Gpa> {
        self.by_page.iter().map(|(page, _)| Gpa(*page))
    }

    /// The plants whose instruction may have bytes in `len` bytes from `gpa` on.
    pub(crate) fn touched(&self, gpa: Gpa, len: usize) -> impl Iterator<Item = &Arc<Plant>> {
        let first = gpa.0.saturating_sub(MAX_LENGTH_BYTES as u64 - 1);
        let end = gpa.0.saturating_add(len as u64);
        let torn = self.torn.iter().filter(move |plant| {
            plant
                .spot
                .beyond
                .is_some_and(|page| page.0 < end && gpa.0 < page.0 + MAX_LENGTH_BYTES as u64)
        });
        (first..end)
            .filter_map(|at| self.by_gpa.get(&at))
            .chain(torn)
    }
}

impl PlantedInstructions for ArcSwap<Table> {
    fn refresh(&self, planter: &Planter, gpa: Gpa, len: usize) {
        for plant in self.load().touched(gpa, len) {
            plant.refresh(planter);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "below 4096")]
fn offset(at: Gva) -> usize {
    at.page_offset() as usize
}

#[cfg(test)]
mod tests {
    use text::PlantByte;
    use text::testing::FakeMemory;

    use super::*;
    use crate::plant::own_instruction;

    /// `mov rax, 0x11223344`, two bytes before the end of a page.
    const MOV: [u8; 7] = [0x48, 0xc7, 0xc0, 0x44, 0x33, 0x22, 0x11];
    const AT: Gva = Gva(0xffff_ffff_c000_0ffe);

    fn torn(memory: &Arc<FakeMemory>) -> (Planter, Plant) {
        memory.put(0x1ffe, &MOV[..2]);
        memory.put(0x5000, &MOV[2..]);
        let memory = Arc::clone(memory);
        let planter = Planter::new(memory, PlantByte::Port);
        let spot = Spot {
            gpa: Gpa(0x1ffe),
            beyond: Some(Gpa(0x5000)),
        };
        (planter, Plant::new(AT, spot))
    }

    #[test]
    fn an_instruction_is_read_from_the_two_pages_that_it_lies_on() {
        let memory = Arc::new(FakeMemory::new(vec![0; 0x6000]));
        let (planter, plant) = torn(&memory);
        plant.refresh(&planter);
        let decoded = plant.displaced(&planter, AT).expect("an instruction");
        assert_eq!(decoded.bytes(), MOV);
        // Without the second page, the bytes do not decode.
        let beyond = None;
        let spot = Spot {
            beyond,
            ..plant.spot
        };
        assert!(own_instruction(&planter, spot, AT).is_none());
    }

    #[test]
    fn a_write_to_the_second_page_is_seen() {
        let memory = Arc::new(FakeMemory::new(vec![0; 0x6000]));
        let (_, plant) = torn(&memory);
        let mut table = Table::default();
        table.put(Arc::new(plant));
        let touched = |gpa, len| table.touched(Gpa(gpa), len).count();
        assert_eq!(touched(0x5000, 1), 1);
        assert_eq!(touched(0x4ff9, 8), 1);
        assert_eq!(touched(0x1fff, 1), 1);
        assert_eq!(
            touched(0x2000, 8),
            1,
            "the page that does not follow, to be safe"
        );
        assert_eq!(touched(0x500f, 8), 0);
    }
}
