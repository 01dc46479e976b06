//! Where the running kernel is, virtually and physically.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use introspect::kaslr::kaslr_slide;
use introspect::{Gpa, Gva, walk};
use text::{GuestError, Paused, Spot, Vcpu};

use super::Engine;
use crate::resolve::Place;

/// The location of the running kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// Run-time less link-time address.
    pub(crate) slide: i64,
    /// For a kernel that has moved: guest-physical less link-time address. `None` if the kernel lies at the physical addresses of
    /// its file.
    pub(super) physical: Option<u64>,
}

impl Located {
    /// The link-time address of a run-time one.
    pub(super) fn linked(self, running: Gva) -> Gva {
        Gva(running.0.wrapping_sub(self.slide.cast_unsigned()))
    }

    /// The run-time address of `at`, an address in the terms of `place`.
    pub(super) fn running_at(self, place: &Place, at: Gva) -> Gva {
        match place.module {
            Some(_) => at,
            None => at.wrapping_add(self.slide.cast_unsigned()),
        }
    }
}

/// The location of the kernel, once known; cleared when another kernel takes over.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    located: ArcSwapOption<Located>,
    /// Whether a failed location has been noted. A guest may write any number of useless addresses: one note is enough.
    is_doubt_noted: AtomicBool,
}

impl Whereabouts {
    pub(super) fn get(&self) -> Option<Located> {
        self.located.load().as_deref().copied()
    }

    pub(super) fn set(&self, located: Option<Located>) {
        self.located.store(located.map(Arc::new));
    }

    fn is_first_doubt(&self) -> bool {
        !self.is_doubt_noted.swap(true, Ordering::Relaxed)
    }
}

/// Whether the kernel has reached a point that it reaches once.
#[derive(Debug, Default)]
pub(crate) struct Reached(AtomicBool);

impl Reached {
    pub(crate) fn set(&self, reached: bool) {
        self.0.store(reached, Ordering::Release);
    }

    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Engine {
    /// Locates the kernel by the guest's write of `lstar` to MSR_LSTAR.
    pub(super) fn locate(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        lstar: Gva,
    ) -> Result<(), GuestError> {
        let slide = match kaslr_slide(lstar, self.kernel.symbols()) {
            Ok(slide) => slide,
            Err(error) => {
                if !self.turns_away_successor() && self.located.is_first_doubt() {
                    self.note(None, format!("the kernel cannot be located yet: {error}"));
                }
                return Ok(());
            }
        };
        let linked = Gva(lstar.0.wrapping_sub(slide.cast_unsigned()));
        let state = vcpu.system_state()?;
        if !self.takes_over(&state.paging, slide) {
            return Ok(());
        }
        match walk(&self.memory.as_ref(), &state.paging, lstar) {
            Ok(found) => {
                let physical = Some(found.gpa.0.wrapping_sub(linked.0));
                self.located.set(Some(Located { slide, physical }));
                self.note(
                    None,
                    format!("the kernel runs at {slide:+#x} from where it was linked"),
                );
                if let Err(error) = self.reconcile(paused) {
                    self.refuse_pending(&error);
                }
            }
            Err(error) if self.located.is_first_doubt() => {
                self.note(None, format!("the kernel cannot be located yet: {error}"));
            }
            Err(_) => (),
        }
        Ok(())
    }

    pub(super) fn gpa_of(&self, linked: Gva, located: Located) -> Option<Gpa> {
        match located.physical {
            Some(offset) => Some(Gpa(linked.0.wrapping_add(offset))),
            None => self.kernel.to_physical(linked),
        }
    }

    /// The guest-physical location of `at`, an address in the terms of `place`.
    pub(super) fn spot_of(&self, place: &Place, at: Gva, located: Located) -> Option<Spot> {
        match place.module {
            Some(module) => self.modules.at(module)?.spot(at),
            None => self.gpa_of(at, located).map(Spot::contiguous),
        }
    }
}
