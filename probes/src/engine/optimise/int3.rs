//! An `int3` instead of a plant: for instructions without room for a jump. The guest's own handler forwards the vCPU.
//!
//! The handler has to be of a known kind, and each processor has to use the handler. One jump then redirects the handler to the
//! switch (`detour/src/switch.rs`), as long as the guest runs. `docs/optimised.md` has the reasons.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use address::{Gpa, Gva};
use detour::{Detour, DetourError};
use introspect::KernelInt3;
use introspect::insn::Decoded;
use introspect::int3::{HANDLER, HANDLER_BYTES};
use introspect::optimise::WhyNot;
use text::{GuestError, Paused, Spot};

use crate::engine::optimise::vcpu_set::VcpuSet;
use crate::engine::plants::Plants;
use crate::engine::running::Running;

/// #BP.
pub(crate) const VECTOR: u8 = 3;
/// CR4.FRED: exceptions do not go through the interrupt table.
pub(crate) const CR4_FRED: u64 = 1 << 32;

/// The kernel's handler of `int3`, and the vCPUs that use the handler.
#[derive(Debug)]
pub(crate) struct Int3Handler {
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) detour: Arc<Detour>,

    /// The vCPUs that have been checked.
    pub(crate) looked_at: VcpuSet,
    /// The checked vCPUs that use the kernel's handler.
    pub(crate) users: VcpuSet,
    pub(crate) found: OnceLock<Option<Handler>>,
    /// The location of the jump to the switch in the handler.
    pub(crate) opened: Mutex<Option<Spot>>,
}

/// The kernel's handler, at its running address.
#[derive(Clone, Debug)]
pub(crate) struct Handler {
    int3: KernelInt3,
    /// The location of the handler's first instruction.
    entry: Gpa,
    /// The location of the pushes.
    spot: Spot,
}

impl Handler {
    /// The range of the instructions before the pushes.
    pub(crate) fn prefix(&self) -> Range<Gpa> {
        self.entry..self.spot.gpa
    }

    /// The number of bytes of the displaced pushes.
    pub(crate) fn len(&self) -> usize {
        self.int3.first.iter().map(Decoded::len).sum()
    }
}

/// The reason why no `int3` can replace a plant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoInt3 {
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

impl Int3Handler {
    /// The running address of the kernel's handler, by its symbol.
    pub(crate) fn int3_handler(&self) -> Option<Gva> {
        let located = self.running.located.get()?;
        let linked = self.running.kernel.symbols().address_of(HANDLER)?;
        Some(linked.wrapping_add(located.slide.cast_unsigned()))
    }

    /// The handler, read at the first call, for the first plant: the kernel's text is in memory by then. The kernel patches the
    /// handler's alternatives later, and keeps their lengths.
    pub(crate) fn known_handler(&self) -> Option<&Handler> {
        let find = || {
            let (running, located) = (self.int3_handler()?, self.running.located.get()?);
            let gpa = self.running.gpa_of(located.linked(running), located)?;
            let mut code = [0; HANDLER_BYTES];
            self.running.planter.read_own(gpa, &mut code).ok()?;
            let int3 = KernelInt3::find(&code, running)?;
            let spot = Spot::contiguous(gpa.wrapping_add(int3.pushes.0 - running.0));
            Some(Handler {
                int3,
                entry: gpa,
                spot,
            })
        };
        self.found.get_or_init(find).as_ref()
    }

    /// Sets the target of the `int3` at `site` to `to`.
    pub(crate) fn lead_by_int3(
        &self,
        paused: &dyn Paused,
        site: Gva,
        to: Gva,
    ) -> Result<(), DetourError> {
        let handler = self.known_handler().ok_or(DetourError::NoPlace)?;
        let (spot, len) = (handler.spot, handler.len());
        let memory = self.running.memory.as_ref();
        self.detour
            .lead(paused, memory, &handler.int3, site, to, |_, jump| {
                self.running.planter.keep(paused, spot, len)?;
                if let Err(error) = self.running.planter.set_jump(paused, spot.gpa, Some(jump)) {
                    self.running.planter.release(spot, len);
                    return Err(GuestError::from(error).into());
                }
                *self.opened() = Some(spot);
                Ok(())
            })
    }

    /// Whether the jump to the switch covers `gpa` in the kernel's handler: the instruction there is executed elsewhere.
    pub(crate) fn is_redirected(&self, gpa: Gpa) -> bool {
        let opened = *self.opened();
        opened
            .zip(self.known_handler())
            .is_some_and(|(spot, handler)| spot.holds(gpa, handler.len()))
    }

    /// The range of the handler's instructions before its pushes.
    pub(crate) fn int3_prefix(&self) -> Option<Range<Gpa>> {
        self.known_handler().map(Handler::prefix)
    }

    /// Whether guest writes before the handler's pushes exit: the pushes' page is read-only while the handler is redirected.
    pub(crate) fn int3_prefix_is_watched(&self) -> bool {
        let prefix = self.int3_prefix();
        prefix.is_some_and(|prefix| prefix.start.page() == prefix.end.page())
    }

    /// Whether a probe on the handler keeps `int3`s from replacing plants.
    pub(crate) fn is_int3_handler_probed(&self) -> bool {
        let found = self.found.get().and_then(Option::as_ref);
        found.is_some_and(|handler| {
            self.is_before_pushes_probed(handler) || self.are_pushes_probed(handler)
        })
    }

    pub(crate) fn is_before_pushes_probed(&self, handler: &Handler) -> bool {
        let Range { start, end } = handler.prefix();
        let len = usize::try_from(end.0.saturating_sub(start.0)).unwrap_or(0);
        !self.running.planter.pages().planted(start, len).is_empty()
    }

    /// Whether a probe is on the pushes. `false` once the handler is redirected: a probe on its pushes is refused then.
    pub(crate) fn are_pushes_probed(&self, handler: &Handler) -> bool {
        let Handler { spot, .. } = handler;
        self.opened().is_none()
            && !self
                .running
                .planter
                .pages()
                .planted(spot.gpa, handler.len())
                .is_empty()
    }

    /// Whether every `int3` executes the instruction at `gpa` before the switch.
    pub(crate) fn is_before_switch(&self, gpa: Gpa) -> bool {
        let is_open = self.opened().is_some();
        is_open
            && self
                .int3_prefix()
                .is_some_and(|prefix| prefix.contains(&gpa))
    }

    /// Whether the handler, with its present bytes, reaches the known pushes.
    pub(crate) fn handler_leads_to_pushes(&self) -> bool {
        let Some(Handler { int3, entry, .. }) = self.known_handler() else {
            return false;
        };
        let mut code = [0; HANDLER_BYTES];
        let read = self.running.planter.read_own(*entry, &mut code);
        let found = read.ok().and_then(|()| KernelInt3::find(&code, int3.entry));
        found.is_some_and(|found| found.pushes == int3.pushes)
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Option<Spot>> {
        let opened = self.opened.lock();
        opened.unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the kernel's handler. No site has an injected `int3` any more. If a vCPU has executed an injected `int3`, and not
    /// reached the jump yet, the vCPU continues in the handler. The handler finds no `int3` at the site, as after the removal of
    /// a kprobe of the kernel's own.
    pub(crate) fn close_int3(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let opened = self.opened().take();
        if let Some((spot, handler)) = opened.zip(self.known_handler()) {
            self.running.planter.set_jump(paused, spot.gpa, None)?;
            self.running.planter.release(spot, handler.len());
        }
        Ok(())
    }
}
