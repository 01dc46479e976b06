//! An `int3` instead of a plant: for instructions without room for a jump. The guest's own handler forwards the vCPU.
//!
//! The handler has to be of a known kind, and each processor has to use the handler. One jump then redirects the handler to the
//! switch (`detour/switch.rs`), as long as the guest runs. `docs/optimised.md` has the reasons.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use detour::{DetourError, HandedOn, Jumped, KernelSpace, Tables};
use introspect::insn::{Decoded, is_plain};
use introspect::int3::{HANDLER, HANDLER_BYTES};
use introspect::optimise::{Unfit, WhyNot};
use introspect::{Gpa, Gva, Idt, KernelInt3};
use text::{GuestError, Paused, PlantByte, Spot, Vcpu};

use super::super::jumps::INT3;
use super::vcpus::VcpuSet;
use super::{Engine, Lead};
use crate::hit::Plant;
use crate::registry::{Missed, Purpose};

/// #BP.
const VECTOR: u8 = 3;
/// CR4.FRED: exceptions do not go through the interrupt table.
const CR4_FRED: u64 = 1 << 32;

/// The state of the `int3` redirect: the vCPUs that use the kernel's handler, and the handler.
#[derive(Debug, Default)]
pub(super) struct Int3Way {
    /// The vCPUs that have been checked.
    looked_at: VcpuSet,
    /// The checked vCPUs that use the kernel's handler.
    pub(super) users: VcpuSet,
    found: OnceLock<Option<Handler>>,
    /// The location of the jump to the switch in the handler.
    opened: Mutex<Option<Spot>>,
}

/// The kernel's handler, at its running address.
#[derive(Clone, Debug)]
struct Handler {
    int3: KernelInt3,
    /// The location of the handler's first instruction.
    entry: Gpa,
    /// The location of the pushes.
    spot: Spot,
}

impl Handler {
    /// The range of the instructions before the pushes.
    fn prefix(&self) -> Range<Gpa> {
        self.entry..self.spot.gpa
    }

    /// The number of bytes of the displaced pushes.
    fn len(&self) -> usize {
        self.int3.first.iter().map(Decoded::len).sum()
    }
}

/// The reason why no `int3` can replace a plant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoInt3 {
    /// KVM does not let the guest have its `int3`.
    #[error("this KVM does not deliver an int3 to the guest")]
    Host,
    /// The kernel's handler has unknown bytes.
    #[error("the kernel's handler of int3 is not of a known kind")]
    Handler,
    /// A probe is on the pushes of the handler.
    #[error("another probe is on the kernel's handler of int3, where hyprobe would redirect it")]
    HandlerProbed,
    /// A probe is between the handler's entry and its pushes: each `int3` would hit the probe.
    #[error(
        "another probe is on the kernel's handler of int3, and would exit at each int3 and count it"
    )]
    HandlerEntryProbed,
    /// The vCPU may have another interrupt table, or none.
    #[error(
        "vCPU {0} is not known to use the kernel's handler of int3: it has not started, or is offline"
    )]
    Vcpu(usize),
    /// The kernel patches its handler, or may come to use FRED.
    #[error("the kernel has not patched itself yet, and its handler of int3 may change")]
    HandlerPatchedLater,
    /// The kernel's exceptions do not go through the interrupt table.
    #[error("the kernel uses FRED")]
    Fred,
    /// The instruction's effect depends on its address, or, in a module, may do so.
    #[error("`{0}` would not do the same in a detour")]
    Bound(String),
    /// The survey of the kernel's code excludes the instruction.
    #[error(transparent)]
    Unfit(#[from] WhyNot),
}

impl Engine {
    /// Whether a pause to check the vCPU's handler of `int3` is worthwhile. Called at every hit.
    pub(in crate::engine) fn may_look_at_int3(&self, vcpu: usize) -> bool {
        self.is_optimising() && self.has_int3() && !self.optimised.int3.looked_at.contains(vcpu)
    }

    /// Checks whether the vCPU uses the kernel's handler of `int3`. If all vCPUs do now, `int3`s replace plants.
    pub(in crate::engine) fn look_at_int3(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
    ) -> Result<(), GuestError> {
        let Int3Way {
            looked_at, users, ..
        } = &self.optimised.int3;
        if users.contains(vcpu.index()) || !self.has_int3() {
            return Ok(());
        }
        looked_at.insert(vcpu.index());
        let Some(handler) = self.int3_handler() else {
            return Ok(());
        };
        let sregs = vcpu.sregs()?;
        let idt = Idt {
            base: Gva(sregs.idt.base),
            limit: sregs.idt.limit,
        };
        let paging = vcpu.system_state()?.paging;
        if idt.target(self.memory.as_ref(), &paging, VECTOR) == Some(handler) {
            users.insert(vcpu.index());
            if self.vcpu_without_handler(paused).is_none() {
                self.look_at_cpus(paused)?;
            }
        }
        Ok(())
    }

    /// Whether the guest, not the VMM, gets an `int3` that the guest executes.
    pub(in crate::engine) fn has_int3(&self) -> bool {
        self.abilities.int3_to_guest && self.planter.byte() == PlantByte::Port
    }

    /// The running address of the kernel's handler, by its symbol.
    fn int3_handler(&self) -> Option<Gva> {
        let located = self.located.get()?;
        let linked = self.kernel.symbols().address_of(HANDLER)?;
        Some(linked.wrapping_add(located.slide.cast_unsigned()))
    }

    /// The handler, read at the first call, for the first plant: the kernel's text is in memory by then. The kernel patches the
    /// handler's alternatives later, and keeps their lengths.
    fn known_handler(&self) -> Option<&Handler> {
        let find = || {
            let (running, located) = (self.int3_handler()?, self.located.get()?);
            let gpa = self.gpa_of(located.linked(running), located)?;
            let mut code = [0; HANDLER_BYTES];
            self.planter.read_own(gpa, &mut code).ok()?;
            let int3 = KernelInt3::find(&code, running)?;
            let spot = Spot::contiguous(gpa.wrapping_add(int3.pushes.0 - running.0));
            Some(Handler {
                int3,
                entry: gpa,
                spot,
            })
        };
        self.optimised.int3.found.get_or_init(find).as_ref()
    }

    /// The instruction at `plant`, displaced by an `int3`, if an `int3` is possible there.
    pub(super) fn by_int3(
        &self,
        paused: &dyn Paused,
        plant: &Plant,
        planted: Decoded,
        kernel: &KernelSpace,
    ) -> Result<Jumped, NoInt3> {
        if !self.has_int3() {
            return Err(NoInt3::Host);
        }
        if kernel.paging.cr4 & CR4_FRED != 0 {
            return Err(NoInt3::Fred);
        }
        let Some(handler) = self.known_handler() else {
            return Err(NoInt3::Handler);
        };
        if kernel.tables == Tables::Early && !self.does_early_int3_reach_switch() {
            return Err(NoInt3::HandlerPatchedLater);
        }
        if self.are_pushes_probed(handler) {
            return Err(NoInt3::HandlerProbed);
        }
        if self.is_before_pushes_probed(handler) {
            return Err(NoInt3::HandlerEntryProbed);
        }
        let without = match kernel.tables {
            Tables::Early => self.early_vcpu_without_handler(),
            Tables::Settled => self.vcpu_without_handler(paused),
        };
        if let Some(vcpu) = without {
            return Err(NoInt3::Vcpu(vcpu));
        }
        if self.modules.holding(plant.at).is_some() {
            let is_free = is_plain(&planted);
            return if is_free {
                Ok(Jumped::by_int3(planted))
            } else {
                Err(NoInt3::Bound(planted.text()))
            };
        }
        if let Some(located) = self.located.get() {
            let (survey, sites) = (self.kernel.survey(), self.kernel.sites());
            match survey.verdict_on_byte(sites, located.linked(plant.at), planted.bytes()) {
                Err(WhyNot::Unfit(Unfit::Thunk))
                    if self.is_early_return_thunk(plant.at, planted.bytes()) => {}
                Err(WhyNot::Fixed { .. })
                    if self.is_early_sti_before_return(plant, planted.bytes()) => {}
                verdict => verdict?,
            }
        }
        Ok(Jumped::by_int3(planted))
    }

    /// Sets the target of the `int3` at `site` to `to`.
    pub(super) fn lead_by_int3(
        &self,
        paused: &dyn Paused,
        site: Gva,
        to: Gva,
    ) -> Result<(), DetourError> {
        let handler = self.known_handler().ok_or(DetourError::NoPlace)?;
        let (spot, len) = (handler.spot, handler.len());
        let memory = self.memory.as_ref();
        self.detour
            .lead(paused, memory, &handler.int3, site, to, |_, jump| {
                self.planter.keep(paused, spot, len)?;
                if let Err(error) = self.planter.set_jump(paused, spot.gpa, Some(jump)) {
                    self.planter.release(spot, len);
                    return Err(GuestError::from(error).into());
                }
                *self.opened() = Some(spot);
                Ok(())
            })
    }

    /// If the guest has an `int3` of its own at `plant`, which is about to be executed, gives the `int3` to the guest's handler,
    /// even if the site had an injected `int3` before.
    pub(in crate::engine) fn hand_on_int3(&self, paused: &dyn Paused, plant: &Plant, rip: Gva) {
        let displaced = plant.displaced(&self.planter, rip);
        if displaced.is_none_or(|displaced| displaced.bytes() != [INT3]) {
            return;
        }
        match self.detour.hand_on(paused, rip) {
            Ok(HandedOn::No) => (),
            // The vCPU's hit is not counted: the guest's handler treats the int3 as the guest's own.
            Ok(HandedOn::Maybe) => {
                for (probe, _) in &plant.probes {
                    // A call that is missed is a hit of its return probe.
                    if matches!(probe.purpose, Purpose::Return(_)) {
                        probe.count_recorded();
                    }
                    probe.miss(Missed::Disarmed);
                }
            }
            Err(error) => self.note(None, format!("an int3 at {rip} is led back: {error}")),
        }
    }

    /// Whether the jump to the switch covers `gpa` in the kernel's handler: the instruction there is executed elsewhere.
    pub(in crate::engine) fn is_redirected(&self, gpa: Gpa) -> bool {
        let opened = *self.opened();
        opened
            .zip(self.known_handler())
            .is_some_and(|(spot, handler)| spot.holds(gpa, handler.len()))
    }

    /// The range of the handler's instructions before its pushes.
    pub(super) fn int3_prefix(&self) -> Option<Range<Gpa>> {
        self.known_handler().map(Handler::prefix)
    }

    /// Whether guest writes before the handler's pushes exit: the pushes' page is read-only while the handler is redirected.
    pub(super) fn int3_prefix_is_watched(&self) -> bool {
        let prefix = self.int3_prefix();
        prefix.is_some_and(|prefix| prefix.start.page() == prefix.end.page())
    }

    /// Whether a probe on the handler keeps `int3`s from replacing plants.
    pub(in crate::engine) fn is_int3_handler_probed(&self) -> bool {
        let found = self.optimised.int3.found.get().and_then(Option::as_ref);
        found.is_some_and(|handler| {
            self.is_before_pushes_probed(handler) || self.are_pushes_probed(handler)
        })
    }

    fn is_before_pushes_probed(&self, handler: &Handler) -> bool {
        let Range { start, end } = handler.prefix();
        let len = usize::try_from(end.0.saturating_sub(start.0)).unwrap_or(0);
        !self.planter.planted(start, len).is_empty()
    }

    /// Whether a probe is on the pushes. `false` once the handler is redirected: a probe on its pushes is refused then.
    fn are_pushes_probed(&self, handler: &Handler) -> bool {
        let Handler { spot, .. } = handler;
        self.opened().is_none() && !self.planter.planted(spot.gpa, handler.len()).is_empty()
    }

    /// Whether every `int3` executes the instruction at `gpa` before the switch.
    pub(super) fn is_before_switch(&self, gpa: Gpa) -> bool {
        let is_open = self.opened().is_some();
        is_open
            && self
                .int3_prefix()
                .is_some_and(|prefix| prefix.contains(&gpa))
    }

    /// Whether the handler, with its present bytes, reaches the known pushes.
    pub(super) fn handler_leads_to_pushes(&self) -> bool {
        let Some(Handler { int3, entry, .. }) = self.known_handler() else {
            return false;
        };
        let mut code = [0; HANDLER_BYTES];
        let read = self.planter.read_own(*entry, &mut code);
        let found = read.ok().and_then(|()| KernelInt3::find(&code, int3.entry));
        found.is_some_and(|found| found.pushes == int3.pushes)
    }

    /// Removes all injected `int3`s.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(super) fn remove_int3s(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let table = self.table.load_full();
        for plant in table.plants() {
            if let Some(gpa) = plant.optimising.jump()
                && self.leads(gpa) == Some(Lead::Int3)
            {
                self.unoptimise(paused, plant)?;
            }
        }
        Ok(())
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Option<Spot>> {
        let opened = self.optimised.int3.opened.lock();
        opened.unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the kernel's handler. No site has an injected `int3` any more. If a vCPU has executed an injected `int3`, and not
    /// reached the jump yet, the vCPU continues in the handler. The handler finds no `int3` at the site, as after the removal of
    /// a kprobe of the kernel's own.
    pub(in crate::engine) fn close_int3(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let opened = self.opened().take();
        if let Some((spot, handler)) = opened.zip(self.known_handler()) {
            self.planter.set_jump(paused, spot.gpa, None)?;
            self.planter.release(spot, handler.len());
        }
        Ok(())
    }
}
