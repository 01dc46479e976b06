//! The running kernel: where it is, how far its boot has come, which modules are loaded, and what its memory holds.
//!
//! The queries change nothing, and any thread may ask.

pub(crate) mod arming;
pub(crate) mod boundaries;
pub(crate) mod call_sites;
pub(crate) mod data;
pub(crate) mod loaded;
pub(crate) mod located;
pub(crate) mod prepare;
mod view;

use std::sync::Arc;

use address::{Gpa, Gva, PAGE_BYTES};
use detour::{KernelSpace, Tables};
use introspect::insn::{Class, Decoded, Reason, classify};
use introspect::{Modules, ModulesError, PagingState, read_virt, walk};
use manifest::Stealth;
use text::{GuestError, GuestMemory, PlantByte, Planter, Spot, SystemState, Vcpu};

use crate::engine::abilities::Abilities;
use crate::engine::running::loaded::LoadedModules;
use crate::engine::running::located::{Located, Reached, Whereabouts};
use crate::kernel::Kernel;
use crate::plant::{Plant, own_instruction};
use crate::resolve::Place;

/// The opcode of `int3`.
pub(crate) const INT3: u8 = 0xcc;
/// The kernel's `gs`, while a program runs.
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

/// The running kernel, in guest memory.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) kernel: Kernel,
    pub(crate) memory: Arc<dyn GuestMemory>,
    pub(crate) planter: Planter,
    pub(crate) abilities: Abilities,
    /// The location, once known. Unset when another kernel takes over.
    pub(crate) located: Whereabouts,
    /// The kernel has patched itself for this machine.
    pub(crate) boot_patched: Reached,
    /// The kernel has freed its init text.
    pub(crate) init_freed: Reached,
    pub(crate) modules: LoadedModules,
}

impl Running {
    /// The run-time address of the kernel less its link address, once known.
    #[must_use]
    pub(crate) fn slide(&self) -> Option<i64> {
        self.located.get().map(|located| located.slide)
    }

    pub(crate) fn kernel_space_with(
        &self,
        paging: PagingState,
        located: Located,
        tables: Tables,
    ) -> KernelSpace {
        let linked = self.kernel.image();
        let slide = located.slide.cast_unsigned();
        KernelSpace {
            paging,
            image: linked.start.wrapping_add(slide)..linked.end.wrapping_add(slide),
            tables,
        }
    }

    /// Whether plants are hidden: memory has the guest's own bytes, and each access of the guest to a page with a plant exits.
    pub(crate) fn hides_plants(&self) -> bool {
        self.abilities.stealth != Stealth::Writes
    }

    /// Whether the user's probes at instructions are in debug registers. Plants of the engine's own are hidden.
    pub(crate) fn probes_in_registers(&self) -> bool {
        self.abilities.stealth == Stealth::Registers
    }

    /// The instruction at a plant, decoded for the execution address `rip`. The guest writes under a hidden plant unseen, so its instruction is read
    /// anew.
    pub(crate) fn displaced(&self, plant: &Plant, rip: Gva) -> Option<Decoded> {
        match self.hides_plants() {
            true => own_instruction(&self.planter, plant.spot, rip),
            false => plant.displaced(&self.planter, rip),
        }
    }

    /// Whether the guest's write of `data` at `gpa` requires [`StandIns::stand_in`](crate::engine::write::stand_in::StandIns::stand_in).
    pub(crate) fn wants_stand_in(&self, gpa: Gpa, data: &[u8]) -> bool {
        self.abilities.debug_execute && self.planter.overwrites_plant(gpa, data)
    }

    /// Whether the guest's exception handler reads the instruction after an exception.
    pub(crate) fn is_read_when_executed(&self, plant: &Plant, decoded: &Decoded) -> bool {
        is_undefined(decoded) || (decoded.bytes() == [INT3] && self.is_built_in(plant))
    }

    /// Whether the kernel was built with an `int3` at `plant`, and plants are a different byte.
    fn is_built_in(&self, plant: &Plant) -> bool {
        let filed = self.located.get().and_then(|located| {
            let linked = located.linked(plant.at);
            self.kernel.bytes_at(linked, 1)
        });
        filed == Some(&[INT3]) && self.planter.byte() != PlantByte::Int3
    }

    /// The plants shown in `len` bytes of memory from `at` on.
    pub(crate) fn plants_in(&self, paging: &PagingState, at: Gva, len: u64) -> Vec<Gpa> {
        self.in_memory(paging, at, len, |gpa, len| {
            self.planter.pages().shown(gpa, len)
        })
    }

    /// Collects the results of `what` for each guest-physical range of the `len` bytes from `at` on.
    pub(crate) fn in_memory(
        &self,
        paging: &PagingState,
        at: Gva,
        len: u64,
        what: impl Fn(Gpa, usize) -> Vec<Gpa>,
    ) -> Vec<Gpa> {
        let mut found = Vec::new();
        let mut done = 0;
        while done < len {
            let at = at.wrapping_add(done);
            let here = (PAGE_BYTES - at.page_offset()).min(len - done);
            if let Ok(translated) = walk(&self.planter, paging, at) {
                found.extend(what(translated.gpa, usize::try_from(here).unwrap_or(0)));
            }
            done += here;
        }
        found
    }

    pub(crate) fn word(&self, paging: &PagingState, at: Gva) -> Option<u64> {
        let mut bytes = [0; 8];
        read_virt(&self.planter, paging, at, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    pub(crate) fn gpa_of(&self, linked: Gva, located: Located) -> Option<Gpa> {
        match located.physical {
            Some(offset) => Some(Gpa(linked.0.wrapping_add(offset))),
            None => self.kernel.to_physical(linked),
        }
    }

    /// The guest-physical location of `at`, an address in the terms of `place`.
    pub(crate) fn spot_of(&self, place: &Place, at: Gva, located: Located) -> Option<Spot> {
        match place.module() {
            Some(module) => self.modules.at(module)?.spot(at),
            None => self.gpa_of(at, located).map(Spot::contiguous),
        }
    }

    /// The state of a vCPU as the kernel needs it: of a vCPU in a program, `gs` and the page tables are those that the kernel would set at an
    /// entry.
    pub(crate) fn kernel_state(&self, vcpu: &mut dyn Vcpu) -> Result<SystemState, GuestError> {
        let mut state = vcpu.system_state()?;
        if state.privilege == 3 {
            state.system.segments.gs.base = vcpu.read_msr(MSR_KERNEL_GS_BASE)?;
            if let Some(paging) = self.modules.paging() {
                state.paging = paging;
            }
        }
        Ok(state)
    }

    /// Keeps the page tables of this vCPU as the kernel's own: the first task is about to run.
    pub(crate) fn keep_page_tables(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let paging = vcpu.system_state()?.paging;
        if self.modules.paging().is_none() {
            self.modules.paging.store(Some(Arc::new(paging)));
        }
        Ok(())
    }

    /// Reads modules by `read`; `None` while no module can have been loaded yet.
    pub(crate) fn read_module<T>(
        &self,
        read: impl FnOnce(&Modules, &PagingState) -> Result<T, ModulesError>,
    ) -> Result<Option<T>, ModulesError> {
        match (self.kernel.modules(), self.modules.paging()) {
            (Ok(modules), Some(paging)) => read(modules, &paging).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether the guest, not the VMM, gets an `int3` that the guest executes.
    pub(crate) fn has_int3(&self) -> bool {
        self.abilities.int3_to_guest && self.planter.byte() == PlantByte::Port
    }
}

/// Whether the processor always raises #UD at the instruction.
pub(crate) fn is_undefined(decoded: &Decoded) -> bool {
    classify(decoded) == Class::MustStep(Reason::Undefined)
}
