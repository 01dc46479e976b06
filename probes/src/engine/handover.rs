//! Hand-overs to another kernel: kexec, or a crash kernel after a panic.
//!
//! ```text
//!  machine_kexec ── plants and jumps are removed ──▶ gone ── LSTAR is written ──▶ the same build: pending, armed
//!                                                                            └──▶ another build: gone
//! ```
//!
//! Both kinds pass `machine_kexec`, with the other processors stopped, before the kernel copies the code that moves the next
//! kernel into place. From the entry of `machine_kexec` on, memory holds no change by hyprobe: no plant, no read-only page,
//! no page-directory entry, and no debug register is set. A processor stopped inside a detour never continues.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError};

use events::ProbeState;
use introspect::{PagingState, read_virt};
use text::Paused;

use super::Engine;
use crate::registry::{Missed, Probe};

/// The symbol of the text that identifies a build of Linux, and the maximum length of the comparison.
const BANNER: &str = "linux_banner";
const MAX_BANNER_BYTES: u64 = 512;
const REASON: &str = "the guest has started another kernel";

/// Whether another kernel has taken over.
#[derive(Debug, Default)]
pub(super) struct Successor(AtomicU8);

impl Successor {
    /// The booted kernel runs, or a further start of the same build.
    const SAME: u8 = 0;
    /// Another kernel has been started, and its location is not known yet.
    const AWAITED: u8 = 1;
    /// The running kernel is a different build.
    const OTHER: u8 = 2;

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Release);
    }
}

impl Engine {
    /// Removes hyprobe's changes from memory, and marks all probes as gone: the vCPU is about to run `machine_kexec`.
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

    /// Removes every plant, jump and debug register, and makes every page writable again.
    fn empty_memory(&self, paused: &dyn Paused) -> Result<(), Box<dyn std::error::Error>> {
        self.reconcile(paused)?;
        self.hand_over_region(paused)?;
        self.planter.unprotect(paused)?;
        Ok(())
    }

    /// Forgets the kernel: the location of the next kernel is not known.
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

    /// Whether a write of MSR_LSTAR can locate the kernel.
    pub(super) fn awaits_kernel(&self) -> bool {
        self.located.get().is_none() && self.successor.get() != Successor::OTHER
    }

    /// Handles a running kernel that is not the known build. Returns whether the guest has started another kernel.
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

    /// Whether the kernel that runs at `slide` from its link address is the known build. If the guest has started the same
    /// build again, the probes are pending again.
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
            // A refused probe may be possible in the new kernel: the guest's own probes and patches are gone.
            let is_over = matches!(probe.state(), ProbeState::Gone | ProbeState::Refused);
            if is_over && probe.place().is_some() {
                probe.set_state(ProbeState::Pending, None);
            }
        }
        true
    }

    /// Whether memory holds the same build name and build number as the kernel's file.
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
