//! What is planted, as the vCPUs look it up: never changed, only replaced.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use introspect::{Gpa, Gva};

use crate::addresses::AddressMap;
use crate::plant::{Planter, Spot};
use crate::registry::{Milestone, Probe, Purpose};

/// One planted place, and everybody who wants to know of it.
#[derive(Debug)]
pub(crate) struct Plant {
    /// Address in the kernel's own mapping.
    pub(crate) at: Gva,
    pub(crate) spot: Spot,
    /// Calls that are followed return here.
    pub(crate) returns: bool,
    /// In the order of their registration, with the address that each is about.
    pub(crate) probes: Vec<(Arc<Probe>, Gva)>,
    /// The guest's own instruction here; `None` if its bytes are none. Replaced when the guest rewrites it.
    displaced: Arc<ArcSwapOption<Decoded>>,
    pub(crate) optimising: Arc<Optimising>,
}

/// Whether a jump may stand for a plant, as far as that has been found out, and whether one does.
#[derive(Debug, Default)]
pub(crate) struct Optimising {
    decided: AtomicBool,
    /// How often the guest has rewritten the place.
    rewrites: AtomicUsize,
    /// Where the jump is, guest-physical.
    jump: Mutex<Option<Gpa>>,
}

/// A guest that rewrites a place so often keeps the plant: each look at it is a pause.
const MAX_REWRITES: usize = 10_000;

impl Optimising {
    /// Nobody has looked, or something has changed since.
    pub(crate) fn is_open(&self) -> bool {
        !self.decided.load(Ordering::Relaxed)
    }

    /// Somebody has looked.
    pub(crate) fn decide(&self) {
        self.decided.store(true, Ordering::Relaxed);
    }

    /// Something has changed that is no rewriting of the guest's.
    pub(crate) fn reopen(&self) {
        if !self.is_rewritten_too_often() {
            self.decided.store(false, Ordering::Relaxed);
        }
    }

    /// The guest has rewritten the place.
    pub(crate) fn reopen_rewritten(&self) {
        self.rewrites.fetch_add(1, Ordering::Relaxed);
        if self.is_rewritten_too_often() {
            self.decide();
        } else {
            self.decided.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the place keeps its plant for that reason.
    pub(crate) fn is_rewritten_too_often(&self) -> bool {
        self.rewrites.load(Ordering::Relaxed) >= MAX_REWRITES
    }

    fn lock(&self) -> MutexGuard<'_, Option<Gpa>> {
        self.jump.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the jump is that stands for the plant.
    pub(crate) fn jump(&self) -> Option<Gpa> {
        *self.lock()
    }

    pub(crate) fn set_jump(&self, jump: Option<Gpa>) {
        *self.lock() = jump;
    }
}

impl Plant {
    pub(crate) fn new(at: Gva, spot: Spot) -> Self {
        Self {
            at,
            spot,
            returns: false,
            probes: Vec::new(),
            displaced: Arc::default(),
            optimising: Arc::default(),
        }
    }

    /// The same place, of interest to others.
    pub(crate) fn of_interest_to(&self, probes: Vec<(Arc<Probe>, Gva)>, returns: bool) -> Self {
        Self {
            returns,
            probes,
            displaced: Arc::clone(&self.displaced),
            optimising: Arc::clone(&self.optimising),
            ..*self
        }
    }

    /// Whether the plant reports this kernel event.
    pub(crate) fn has_milestone(&self, milestone: Milestone) -> bool {
        let mut purposes = self.probes.iter().map(|(probe, _)| &probe.purpose);
        purposes.any(|purpose| matches!(purpose, Purpose::Milestone(own) if *own == milestone))
    }

    /// Looks at the guest's own bytes again.
    pub(crate) fn refresh(&self, planter: &Planter) {
        self.displaced
            .store(own_instruction(planter, self.spot, self.at).map(Arc::new));
    }

    /// The instruction that the plant displaced, decoded for the address that it is executed at: its own, but for
    /// the first code of a boot, which runs where it is loaded.
    pub(crate) fn displaced(&self, planter: &Planter, rip: Gva) -> Option<Decoded> {
        if rip == self.at {
            self.displaced.load().as_deref().copied()
        } else {
            own_instruction(planter, self.spot, rip)
        }
    }
}

/// The guest's own instruction at `spot`, decoded for `at`.
pub(crate) fn own_instruction(planter: &Planter, spot: Spot, at: Gva) -> Option<Decoded> {
    let mut bytes = [0; MAX_LENGTH_BYTES];
    let (here, beyond) = bytes.split_at_mut(spot.room().min(MAX_LENGTH_BYTES));
    planter.read_own(spot.gpa, here).ok()?;
    let mut len = here.len();
    if let Some(page) = spot.beyond
        && planter.read_own(page, beyond).is_ok()
    {
        len += beyond.len();
    }
    decode(&bytes[..len], at).ok()
}

/// Offsets in a page.
const PAGE_OFFSETS: usize = 4096;

/// All plants. A changed copy shares what has not changed, so that making one costs what the change is worth, however
/// many plants there are.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    by_address: AddressMap<Arc<Plant>>,
    by_gpa: AddressMap<Arc<Plant>>,
    /// Plants whose instruction may go on, on a page that does not follow in guest-physical memory.
    torn: Vec<Arc<Plant>>,
    /// How many plants have each offset in a page: most port writes of the guest's own are told apart by it.
    offsets: Box<[u32; PAGE_OFFSETS]>,
    /// What the debug registers are used for.
    pub(crate) debug: DebugRegisters,
}

/// The use of a debug register.
#[derive(Clone, Debug)]
pub(crate) enum DebugUse {
    /// A place where nothing can be planted.
    Only(Arc<Plant>),
    /// A plant that is withdrawn until it is next executed.
    StandIn(Arc<Plant>),
}

impl DebugUse {
    pub(crate) fn plant(&self) -> &Arc<Plant> {
        match self {
            Self::Only(plant) | Self::StandIn(plant) => plant,
        }
    }
}

/// DR0 to DR3.
pub(crate) type DebugRegisters = [Option<DebugUse>; 4];

impl Default for Table {
    fn default() -> Self {
        Self {
            by_address: AddressMap::default(),
            by_gpa: AddressMap::default(),
            torn: Vec::new(),
            offsets: Box::new([0; PAGE_OFFSETS]),
            debug: [const { None }; 4],
        }
    }
}

impl Table {
    /// Puts `plant` in, in the place of one at the same address.
    pub(crate) fn put(&mut self, plant: Arc<Plant>) {
        self.remove(plant.at);
        self.offsets[offset(plant.at)] += 1;
        self.by_address.insert_mut(plant.at.0, Arc::clone(&plant));
        if plant.spot.room() < MAX_LENGTH_BYTES && plant.spot != Spot::contiguous(plant.spot.gpa) {
            self.torn.push(Arc::clone(&plant));
        }
        self.by_gpa.insert_mut(plant.spot.gpa.0, plant);
    }

    /// Takes the plant at `at` out.
    pub(crate) fn remove(&mut self, at: Gva) {
        let Some(plant) = self.by_address.get(&at.0).cloned() else {
            return;
        };
        self.offsets[offset(at)] -= 1;
        self.by_address.remove_mut(&at.0);
        self.torn.retain(|torn| torn.at != at);
        let gpa = plant.spot.gpa.0;
        if self.by_gpa.get(&gpa).is_some_and(|other| other.at == at) {
            self.by_gpa.remove_mut(&gpa);
        }
    }

    pub(crate) fn plants(&self) -> impl Iterator<Item = &Arc<Plant>> {
        self.by_address.values()
    }

    /// Whether a plant may be executed at `rip`, by whatever mapping.
    pub(crate) fn may_hold(&self, rip: Gva) -> bool {
        self.offsets[offset(rip)] > 0
    }

    pub(crate) fn at(&self, rip: Gva) -> Option<&Arc<Plant>> {
        self.by_address.get(&rip.0)
    }

    pub(crate) fn at_gpa(&self, gpa: Gpa) -> Option<&Arc<Plant>> {
        self.by_gpa.get(&gpa.0)
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

#[expect(clippy::cast_possible_truncation, reason = "below 4096")]
fn offset(at: Gva) -> usize {
    at.page_offset() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlantByte;
    use crate::guest::fake::FakeMemory;

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
        // Nothing follows: what is left is no instruction.
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
