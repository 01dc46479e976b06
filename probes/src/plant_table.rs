//! The table of plants for look-ups by vCPUs: never changed, only replaced.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use arc_swap::{ArcSwap, ArcSwapOption};
use events::ProbeId;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use text::{AddressMap, KernelTables, KnowsTables, Planter, Spot};
use vmm::{BreakpointBytes, HardwareBreakpoint, HardwareBreakpoints};

use crate::handler::PlantedInstructions;
use crate::registry::{KernelEvent, Probe, Purpose};

/// A plant: the site, and the probes with an interest in the site.
#[derive(Debug)]
pub(crate) struct Plant {
    /// Address in the kernel's own mapping.
    pub(crate) at: Gva,
    pub(crate) spot: Spot,
    /// Whether followed calls return to the site.
    pub(crate) returns: bool,
    /// The probes in the order of registration, each with its probed address.
    pub(crate) probes: Vec<(Arc<Probe>, Gva)>,
    /// The original instruction; `None` if the bytes do not decode. Replaced when the guest rewrites the bytes.
    displaced: Arc<ArcSwapOption<Decoded>>,
    pub(crate) optimising: Arc<Optimising>,
}

/// The verdict on a jump in place of the plant, if known, and the jump, if any.
#[derive(Debug, Default)]
pub(crate) struct Optimising {
    decided: AtomicBool,
    /// The number of rewrites of the site by the guest.
    rewrites: AtomicUsize,
    /// The guest-physical address of the jump.
    jump: Mutex<Option<Gpa>>,
}

/// After as many rewrites by the guest, a site keeps its plant: each further verdict would cost a pause.
const MAX_REWRITES: usize = 10_000;

impl Optimising {
    /// Whether a verdict is due: none has been reached yet, or the site has changed since.
    pub(crate) fn is_open(&self) -> bool {
        !self.decided.load(Ordering::Relaxed)
    }

    /// Marks the verdict as reached.
    pub(crate) fn decide(&self) {
        self.decided.store(true, Ordering::Relaxed);
    }

    /// Makes a new verdict due after a change, except a rewrite by the guest.
    pub(crate) fn reopen(&self) {
        if !self.is_rewritten_too_often() {
            self.decided.store(false, Ordering::Relaxed);
        }
    }

    /// Makes a new verdict due after a rewrite by the guest.
    pub(crate) fn reopen_rewritten(&self) {
        self.rewrites.fetch_add(1, Ordering::Relaxed);
        if self.is_rewritten_too_often() {
            self.decide();
        } else {
            self.decided.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the site keeps its plant because of the number of rewrites.
    pub(crate) fn is_rewritten_too_often(&self) -> bool {
        self.rewrites.load(Ordering::Relaxed) >= MAX_REWRITES
    }

    fn lock(&self) -> MutexGuard<'_, Option<Gpa>> {
        self.jump.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest-physical address of the jump that replaces the plant.
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

    /// The kernel's page tables for a vCPU that has executed the plant's byte at `rip`; `None` if `rip` is another mapping of the byte.
    pub(crate) fn kernel_tables<'a>(
        &self,
        known_to: &'a dyn KnowsTables,
        rip: Gva,
    ) -> Option<KernelTables<'a>> {
        (rip == self.at).then(|| KernelTables::for_hit(known_to, self.at, self.spot))
    }

    /// A plant at the same site, with other probes.
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
    pub(crate) fn has_kernel_event(&self, kernel_event: KernelEvent) -> bool {
        let mut purposes = self.probes.iter().map(|(probe, _)| &probe.purpose);
        purposes.any(|purpose| matches!(purpose, Purpose::KernelEvent(own) if *own == kernel_event))
    }

    /// Whether the plant reports any kernel event.
    pub(crate) fn has_kernel_events(&self) -> bool {
        let mut purposes = self.probes.iter().map(|(probe, _)| &probe.purpose);
        purposes.any(|purpose| matches!(purpose, Purpose::KernelEvent(_)))
    }

    /// Reads and decodes the original bytes anew.
    pub(crate) fn refresh(&self, planter: &Planter) {
        self.displaced
            .store(own_instruction(planter, self.spot, self.at).map(Arc::new));
    }

    /// The displaced instruction, decoded for the execution address `rip`. Only the first code of a boot has an execution
    /// address other than the plant's: the code runs at the load address.
    pub(crate) fn displaced(&self, planter: &Planter, rip: Gva) -> Option<Decoded> {
        if rip == self.at {
            self.displaced.load().as_deref().copied()
        } else {
            own_instruction(planter, self.spot, rip)
        }
    }
}

/// The original instruction at `spot`, decoded for the address `at`.
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

/// The use of a debug register.
#[derive(Clone, Debug)]
pub(crate) enum DebugUse {
    /// A site without a plant, because none is possible there.
    Only(Arc<Plant>),
    /// A plant withdrawn until the next execution.
    StandIn(Arc<Plant>),
    /// Watched data.
    Data(DataRegister),
}

/// The debug register of the watchpoints at a word.
#[derive(Clone, Debug)]
pub(crate) struct DataRegister {
    pub(crate) at: Gva,
    pub(crate) bytes: BreakpointBytes,
    /// The guest-physical address of the word.
    pub(crate) gpa: Gpa,
    /// In the order of registration.
    pub(crate) watchpoints: Vec<ProbeId>,
}

impl DataRegister {
    /// Whether the register has the same bytes.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        (self.at, self.bytes, self.gpa) == (other.at, other.bytes, other.gpa)
    }

    /// Whether the registers have a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let end = |register: &Self| register.at.0.saturating_add(register.bytes.count());
        self.at.0 < end(other) && other.at.0 < end(self)
    }
}

impl DebugUse {
    /// The plant of an instruction.
    pub(crate) fn plant(&self) -> Option<&Arc<Plant>> {
        match self {
            Self::Only(plant) | Self::StandIn(plant) => Some(plant),
            Self::Data(_) => None,
        }
    }

    /// Whether the register has the same watched word.
    fn is_of_same_data(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Data(one), Self::Data(other)) if one.is_of_same(other))
    }

    /// The condition of the register.
    fn condition(&self) -> HardwareBreakpoint {
        match self {
            Self::Only(plant) | Self::StandIn(plant) => HardwareBreakpoint::Execute(plant.at),
            Self::Data(data) => HardwareBreakpoint::Write(data.at, data.bytes),
        }
    }
}

/// DR0 to DR3.
pub(crate) type DebugRegisters = [Option<DebugUse>; 4];

/// Gives `uses` registers, in their order, and returns those for which none is left. Watched data that has had a register `before` keeps the register: a
/// vCPU that runs alone has the former ones in force, and a register of an instruction is known by the instruction's address.
pub(crate) fn assign_registers(
    uses: impl IntoIterator<Item = DebugUse>,
    before: &DebugRegisters,
) -> (DebugRegisters, Vec<DebugUse>) {
    let mut uses = uses.into_iter();
    let mut first: Vec<DebugUse> = uses.by_ref().take(before.len()).collect();
    let mut registers = before.each_ref().map(|used| {
        let used = used.as_ref()?;
        let kept = first.iter().position(|other| other.is_of_same_data(used))?;
        Some(first.remove(kept))
    });
    let mut others = first.into_iter();
    for register in registers.iter_mut().filter(|register| register.is_none()) {
        *register = others.next();
    }
    (registers, uses.collect())
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
