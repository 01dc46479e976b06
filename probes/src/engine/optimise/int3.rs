//! An `int3` in the place of a plant: for what has no room for a jump. The guest's own handler leads it on.
//!
//! That handler has to be one that is known, and it has to be the one that processors go to. Then it is led to the switch
//! (`detour/switch.rs`) by one jump, which stays as long as the region does. `docs/optimised.md` has the reasons.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use introspect::insn::{Decoded, is_plain};
use introspect::int3::{HANDLER, HANDLER_BYTES};
use introspect::optimise::WhyNot;
use introspect::{Gva, Idt, KernelInt3};

use super::super::jumps::INT3;
use super::Engine;
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
    /// A processor has been seen that goes to the kernel's handler.
    is_taken: AtomicBool,
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

/// Why no `int3` can stand for a plant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoInt3 {
    /// The guest does not get it.
    #[error("this KVM does not deliver an int3 to the guest")]
    Host,
    /// The kernel's handler is not what is known.
    #[error("the kernel's handler of int3 is not of a known kind")]
    Handler,
    /// Nobody knows yet that it would be gone to.
    #[error("no processor has been seen to use the kernel's handler of int3")]
    NotSeen,
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
    /// Takes note of where the vCPU goes when it executes an `int3`.
    pub(in crate::engine) fn look_at_int3(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        if self.optimised.int3.is_taken.load(Ordering::Relaxed) || !self.has_int3() {
            return Ok(());
        }
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
            self.optimised.int3.is_taken.store(true, Ordering::Relaxed);
            // Who was turned away for want of this is looked at again, at its next hit.
            for plant in self.table.load().plants() {
                if plant.optimising.jump().is_none() {
                    plant.optimising.reopen();
                }
            }
        }
        Ok(())
    }

    /// Whether the guest gets an `int3` that it executes, and we do not.
    fn has_int3(&self) -> bool {
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
            let gpa = self.gpa_of(located.linked(running), *located)?;
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
        if self.known_handler().is_none() {
            return Err(NoInt3::Handler);
        }
        if !self.optimised.int3.is_taken.load(Ordering::Relaxed) {
            return Err(NoInt3::NotSeen);
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
        let [first, second] = handler.int3.first.each_ref().map(Decoded::len);
        let (spot, len) = (handler.spot, first + second);
        self.detour
            .lead(paused, &handler.int3, site, to, |_, jump| {
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
            Ok(HandedOn::Nobody) => (),
            // It is not told of: the guest's handler goes on as if it was its own.
            Ok(HandedOn::Somebody) => {
                for (probe, _) in &plant.probes {
                    probe.miss(Missed::Disarmed);
                }
            }
            Err(error) => self.note(None, format!("an int3 at {rip} is led back: {error}")),
        }
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Option<Spot>> {
        let opened = self.optimised.int3.opened.lock();
        opened.unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the kernel its handler back. No site has an `int3` any more, and who has executed one is moved.
    pub(in crate::engine) fn close_int3(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let opened = self.opened().take();
        if let Some((spot, handler)) = opened.zip(self.known_handler()) {
            self.planter.set_jump(paused, spot.gpa, None)?;
            let [first, second] = handler.int3.first.each_ref().map(Decoded::len);
            self.planter.release(spot, first + second);
        }
        Ok(())
    }
}
