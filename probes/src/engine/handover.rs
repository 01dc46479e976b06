//! The guest starts another kernel in place of its own: kexec, or a crash kernel behind a panic.
//!
//! ```text
//!  machine_kexec ── everything of ours leaves memory ──▶ gone ── LSTAR is written ──▶ the same kernel: pending, armed
//!                                                                                └──▶ another one: gone
//! ```
//!
//! Both ways come by `machine_kexec`, with the other processors stopped, before the kernel copies code of its own that
//! moves the next one into place. From its entry on memory is the guest's own: no plant, no read-only page, no entry of
//! the page directory, no debug register. A processor that was stopped in a detour does not come back to it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError};

use introspect::{PagingState, read_virt};

use super::Engine;
use crate::ProbeState;
use crate::guest::Paused;
use crate::registry::{Missed, Probe};

/// The text by which a build of Linux is known, and how much of it there is at the most.
const BANNER: &str = "linux_banner";
const MAX_BANNER_BYTES: u64 = 512;
const REASON: &str = "the guest has started another kernel";

/// Whether another kernel has taken over.
#[derive(Debug, Default)]
pub(super) struct Successor(AtomicU8);

impl Successor {
    /// The kernel that was booted runs, or the same one that it has started.
    const SAME: u8 = 0;
    /// One has been started and has not said where it is.
    const AWAITED: u8 = 1;
    /// It is another one.
    const OTHER: u8 = 2;

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Release);
    }
}

impl Engine {
    /// The vCPU is about to run `machine_kexec`: memory becomes the guest's own, and all probes are gone.
    pub(super) fn hand_over(&self, paused: &dyn Paused) {
        self.take_out_records();
        for probe in self.all_probes() {
            if probe.state() != ProbeState::Refused {
                probe.set_state(ProbeState::Gone, Some(REASON.to_owned()));
            }
            if probe.in_module.is_some() {
                probe.set_place(None);
            }
        }
        self.return_sites.retain(|_| false);
        self.return_sites.allow(|_| true);
        self.forget_landings(|_| false);
        for call in self.calls.forget(|_| true) {
            call.probe.lose_call(Missed::Abandoned);
        }
        if let Err(error) = self.empty_memory(paused) {
            self.note(
                None,
                format!("plants stay in the memory of the next kernel: {error}"),
            );
        }
        for probe in self.all_probes() {
            probe.count_in_none();
        }
        self.forget_kernel();
        self.note(None, format!("{REASON}: the probes are gone"));
    }

    /// Takes every plant, jump and debug register away, and makes every page writable again.
    fn empty_memory(&self, paused: &dyn Paused) -> Result<(), Box<dyn std::error::Error>> {
        self.reconcile(paused)?;
        self.hand_over_region(paused)?;
        self.planter.unprotect(paused)?;
        Ok(())
    }

    /// Nothing is known of a kernel that has not said where it is.
    fn forget_kernel(&self) {
        self.located.set(None);
        self.boot_patched.set(false);
        self.init_freed.set(false);
        self.modules.forget_all();
        self.dying().clear();
        let mut panicked = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(panicked) = panicked.as_mut() {
            panicked.at = None;
        }
        self.successor.set(Successor::AWAITED);
    }

    fn all_probes(&self) -> Vec<Arc<Probe>> {
        let probes = self.probes.load();
        probes.iter().chain(&self.milestones).cloned().collect()
    }

    /// Whether a write of MSR_LSTAR says where the kernel is.
    pub(super) fn awaits_kernel(&self) -> bool {
        self.located.get().is_none() && self.successor.get() != Successor::OTHER
    }

    /// The kernel that runs is not the one that is known. Says whether that is because the guest has started another.
    pub(super) fn turns_away_successor(&self) -> bool {
        let is_awaited = self.successor.get() == Successor::AWAITED;
        if is_awaited {
            self.successor.set(Successor::OTHER);
            self.note(
                None,
                "the next kernel is another one: the probes stay gone".to_owned(),
            );
        }
        is_awaited
    }

    /// Whether the kernel that runs at `slide` from where it was linked is the one that is known. If another has been
    /// started and is the same, its probes are pending again.
    pub(super) fn takes_over(&self, paging: &PagingState, slide: i64) -> bool {
        if self.successor.get() != Successor::AWAITED {
            return true;
        }
        if !self.has_banner(paging, slide) {
            self.turns_away_successor();
            return false;
        }
        self.successor.set(Successor::SAME);
        for probe in self.all_probes() {
            // What was refused may be possible there: the guest's own probes and patches are gone.
            let is_over = matches!(probe.state(), ProbeState::Gone | ProbeState::Refused);
            if is_over && probe.place().is_some() {
                probe.set_state(ProbeState::Pending, None);
            }
        }
        true
    }

    /// Whether memory holds the name and the number of the build that the kernel's file has.
    fn has_banner(&self, paging: &PagingState, slide: i64) -> bool {
        let filed = self.kernel.symbols().lookup(BANNER).and_then(|banner| {
            let len = usize::try_from(banner.size.min(MAX_BANNER_BYTES)).ok()?;
            Some((banner.address, self.kernel.bytes_at(banner.address, len)?))
        });
        let Some((linked, filed)) = filed else {
            return false;
        };
        let mut found = vec![0; filed.len()];
        let at = linked.wrapping_add(slide.cast_unsigned());
        let read = read_virt(&self.planter, paging, at, &mut found);
        read.is_ok() && !filed.is_empty() && found == filed
    }
}
