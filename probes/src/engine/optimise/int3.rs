//! An `int3` in the place of a plant: for what has no room for a jump. The guest's own handler leads it on.
//!
//! That handler has to be one that is known, and it has to be the one that processors go to. Then it is led to the switch
//! (`detour/switch.rs`) by one jump, which stays as long as the guest runs. `docs/optimised.md` has the reasons.

use std::sync::{Mutex, OnceLock, PoisonError};

use introspect::insn::{Decoded, is_plain};
use introspect::int3::{HANDLER, HANDLER_BYTES};
use introspect::optimise::WhyNot;
use introspect::{Gpa, Gva, Idt, KernelInt3};

use super::super::jumps::INT3;
use super::Engine;
use super::vcpus::VcpuSet;
use crate::detour::{DetourError, HandedOn, Jumped, KernelSpace};
use crate::guest::{GuestError, Paused, Vcpu};
use crate::hit::Plant;
use crate::plant::{PlantByte, Spot};
use crate::registry::Missed;

/// #BP.
const VECTOR: u8 = 3;
/// CR4.FRED: exceptions do not go through the interrupt table.
const CR4_FRED: u64 = 1 << 32;

/// The way that an `int3` takes.
#[derive(Debug, Default)]
pub(super) struct Int3Way {
    /// The vCPUs that have been looked at.
    looked_at: VcpuSet,
    /// Those of them that go to the kernel's handler.
    pub(super) users: VcpuSet,
    found: OnceLock<Option<Handler>>,
    /// Where the handler is led to the switch.
    opened: Mutex<Option<Spot>>,
}

/// The kernel's handler, as it runs.
#[derive(Clone, Debug)]
struct Handler {
    int3: KernelInt3,
    /// Where its pushes lie.
    spot: Spot,
}

impl Handler {
    /// Bytes of the pushes that the redirection replaces.
    fn len(&self) -> usize {
        self.int3.first.iter().map(Decoded::len).sum()
    }
}

/// Why no `int3` can stand for a plant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoInt3 {
    /// The guest does not get it.
    #[error("this KVM does not deliver an int3 to the guest")]
    Host,
    /// The kernel's handler is not what is known.
    #[error("the kernel's handler of int3 is not of a known kind")]
    Handler,
    /// A probe is where the handler would be redirected.
    #[error("another probe is on the kernel's handler of int3, where hyprobe would redirect it")]
    HandlerProbed,
    /// This vCPU may have another interrupt table, or none.
    #[error(
        "vCPU {0} is not known to use the kernel's handler of int3: it has not started, or is offline"
    )]
    Vcpu(usize),
    /// The kernel's exceptions do not go through the interrupt table.
    #[error("the kernel uses FRED")]
    Fred,
    /// It does not do the same elsewhere, or, in a module, is not known to.
    #[error("`{0}` would not do the same in a detour")]
    Bound(String),
    /// What is known of the kernel's code speaks against it.
    #[error(transparent)]
    Unfit(#[from] WhyNot),
}

impl Engine {
    /// Whether it is worth a pause to find out where the vCPU goes when it executes an `int3`. Asked at every hit.
    pub(in crate::engine) fn may_look_at_int3(&self, vcpu: usize) -> bool {
        self.is_optimising() && self.has_int3() && !self.optimised.int3.looked_at.contains(vcpu)
    }

    /// Takes note of where the vCPU goes when it executes an `int3`. If it was the last that was not known to go to the
    /// kernel's handler, `int3`s come to stand for plants.
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

    /// Whether the guest gets an `int3` that it executes, and we do not.
    pub(in crate::engine) fn has_int3(&self) -> bool {
        self.abilities.int3_to_guest && self.planter.byte() == PlantByte::Port
    }

    /// Where the kernel's handler runs, by its name.
    fn int3_handler(&self) -> Option<Gva> {
        let located = self.located.get()?;
        let linked = self.kernel.symbols().address_of(HANDLER)?;
        Some(linked.wrapping_add(located.slide.cast_unsigned()))
    }

    /// The handler, once the kernel has patched itself.
    fn known_handler(&self) -> Option<&Handler> {
        let find = || {
            let (running, located) = (self.int3_handler()?, self.located.get()?);
            let gpa = self.gpa_of(located.linked(running), located)?;
            let mut code = [0; HANDLER_BYTES];
            self.planter.read_own(gpa, &mut code).ok()?;
            let int3 = KernelInt3::find(&code, running)?;
            let spot = Spot::contiguous(gpa.wrapping_add(int3.pushes.0 - running.0));
            Some(Handler { int3, spot })
        };
        self.optimised.int3.found.get_or_init(find).as_ref()
    }

    /// The instruction at `plant` with an `int3` on it, if one can stand there.
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
        if self.opened().is_none()
            && !self
                .planter
                .planted(handler.spot.gpa, handler.len())
                .is_empty()
        {
            return Err(NoInt3::HandlerProbed);
        }
        if let Some(vcpu) = self.vcpu_without_handler(paused) {
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
            survey.verdict_on_byte(sites, located.linked(plant.at), planted.bytes())?;
        }
        Ok(Jumped::by_int3(planted))
    }

    /// Lets the `int3` at `site` lead to `to`.
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

    /// If the guest has an `int3` of its own at `plant`, which is about to be executed, its handler gets it, though there
    /// was one of ours.
    pub(in crate::engine) fn hand_on_int3(&self, paused: &dyn Paused, plant: &Plant, rip: Gva) {
        let displaced = plant.displaced(&self.planter, rip);
        if displaced.is_none_or(|displaced| displaced.bytes() != [INT3]) {
            return;
        }
        match self.detour.hand_on(paused, rip) {
            Ok(HandedOn::No) => (),
            // Its hit is not counted: the guest's handler goes on as if the int3 was the guest's own.
            Ok(HandedOn::Maybe) => {
                for (probe, _) in &plant.probes {
                    probe.miss(Missed::Disarmed);
                }
            }
            Err(error) => self.note(None, format!("an int3 at {rip} is led back: {error}")),
        }
    }

    /// Whether the kernel's handler is redirected at `gpa`: the instruction there is executed elsewhere.
    pub(in crate::engine) fn is_redirected(&self, gpa: Gpa) -> bool {
        let opened = *self.opened();
        opened
            .zip(self.known_handler())
            .is_some_and(|(spot, handler)| spot.holds(gpa, handler.len()))
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Option<Spot>> {
        let opened = self.optimised.int3.opened.lock();
        opened.unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the kernel its handler back. No site has an `int3` any more. A vCPU that has executed one of ours, and has not
    /// come to the jump yet, goes on in the handler, which finds no `int3` at the site, as it does where a kprobe of the
    /// kernel's own has just gone.
    pub(in crate::engine) fn close_int3(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let opened = self.opened().take();
        if let Some((spot, handler)) = opened.zip(self.known_handler()) {
            self.planter.set_jump(paused, spot.gpa, None)?;
            self.planter.release(spot, handler.len());
        }
        Ok(())
    }
}
