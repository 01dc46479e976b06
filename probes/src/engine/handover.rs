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

use address::Gva;
use events::ProbeState;
use introspect::kaslr::kaslr_slide;
use introspect::{PagingState, read_virt, walk};
use text::{GuestError, Paused, Vcpu};

use crate::engine::arm::Armer;
use crate::engine::crashes::Crashes;
use crate::engine::optimise::Optimiser;
use crate::engine::plants::Plants;
use crate::engine::probe_list::ProbeList;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::Returns;
use crate::engine::returns::following::Following;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::engine::running::located::Located;
use crate::engine::tasks::Tasks;
use crate::registry::{Missed, Probe};

/// The symbol of the text that identifies a build of Linux, and the maximum length of the comparison.
const BANNER: &str = "linux_banner";
const MAX_BANNER_BYTES: u64 = 512;
const REASON: &str = "the guest has started another kernel";

/// Whether another kernel has taken over.
#[derive(Debug, Default)]
pub(crate) struct Successor(AtomicU8);

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

/// Locates the kernel, and follows the hand-over to another kernel. The other vCPUs are paused.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) records: Arc<Records>,
    pub(crate) following: Arc<Following>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) optimiser: Arc<Optimiser>,
    pub(crate) returns: Arc<Returns>,
    pub(crate) armer: Arc<Armer>,
    pub(crate) crashes: Arc<Crashes>,
    pub(crate) successor: Successor,
}

impl Handover {
    /// Removes hyprobe's changes from memory, and marks all probes as gone: the vCPU is about to run `machine_kexec`.
    pub(crate) fn hand_over(&self, paused: &dyn Paused) {
        self.records.take_out_records();
        for probe in self.all_probes() {
            if probe.status.state() != ProbeState::Refused {
                probe
                    .status
                    .set_state(ProbeState::Gone, Some(REASON.to_owned()));
            }
            if probe.in_module.is_some() || probe.in_task.is_some() {
                probe.set_place(None);
            }
        }
        self.return_sites.retain(|_| false);
        self.return_sites.allow(|_| true);
        self.following.forget_landings(|_| false);
        for call in self.following.calls.forget(|_| true) {
            call.probe.counters.lose_call(Missed::Abandoned);
        }
        for call in self.returns.program_calls.forget(|_| true) {
            call.probe.counters.lose_call(Missed::Abandoned);
        }
        if let Err(error) = self.empty_memory(paused) {
            self.reporter.note(
                None,
                format!("plants stay in the memory of the next kernel: {error}"),
            );
        }
        for probe in self.all_probes() {
            probe.count_in_none();
        }
        self.forget_kernel();
        self.reporter
            .note(None, format!("{REASON}: the probes are gone"));
    }

    /// Removes every plant, jump and debug register, and makes every page writable again.
    fn empty_memory(&self, paused: &dyn Paused) -> Result<(), Box<dyn std::error::Error>> {
        self.armer.reconcile(paused)?;
        self.optimiser.hand_over_region(paused)?;
        self.running.planter.unprotect(paused)?;
        Ok(())
    }

    /// Forgets the kernel: the location of the next kernel is not known.
    fn forget_kernel(&self) {
        self.running.located.set(None);
        self.running.boot_patched.set(false);
        self.tasks.found.set(false);
        self.running.init_freed.set(false);
        self.running.modules.forget_all();
        self.returns.dying().clear();
        let mut panicked = self
            .crashes
            .panicked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(panicked) = panicked.as_mut() {
            panicked.at = None;
        }
        self.successor.set(Successor::AWAITED);
    }

    fn all_probes(&self) -> Vec<Arc<Probe>> {
        let probes = self.probes.list.load();
        probes
            .iter()
            .chain(&self.plants.kernel_event_probes)
            .cloned()
            .collect()
    }

    /// Whether a write of MSR_LSTAR can locate the kernel.
    pub(crate) fn awaits_kernel(&self) -> bool {
        self.running.located.get().is_none() && self.successor.get() != Successor::OTHER
    }

    /// Handles a running kernel that is not the known build. Returns whether the guest has started another kernel.
    pub(crate) fn turns_away_successor(&self) -> bool {
        let is_awaited = self.successor.get() == Successor::AWAITED;
        if is_awaited {
            self.successor.set(Successor::OTHER);
            self.reporter.note(
                None,
                "the next kernel is another one: the probes stay gone".to_owned(),
            );
        }
        is_awaited
    }

    /// Whether the kernel that runs at `slide` from its link address is the known build. If the guest has started the same
    /// build again, the probes are pending again.
    pub(crate) fn takes_over(&self, paging: &PagingState, slide: i64) -> bool {
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
            let is_over = matches!(probe.status.state(), ProbeState::Gone | ProbeState::Refused);
            if is_over && probe.place().is_some() {
                probe.status.set_state(ProbeState::Pending, None);
            }
        }
        true
    }

    /// Whether memory holds the same build name and build number as the kernel's file.
    fn has_banner(&self, paging: &PagingState, slide: i64) -> bool {
        let filed = self
            .running
            .kernel
            .symbols()
            .lookup(BANNER)
            .and_then(|banner| {
                let len = usize::try_from(banner.size.min(MAX_BANNER_BYTES)).ok()?;
                Some((
                    banner.address,
                    self.running.kernel.bytes_at(banner.address, len)?,
                ))
            });
        let Some((linked, filed)) = filed else {
            return false;
        };
        let mut found = vec![0; filed.len()];
        let at = linked.wrapping_add(slide.cast_unsigned());
        let read = read_virt(&self.running.planter, paging, at, &mut found);
        read.is_ok() && !filed.is_empty() && found == filed
    }

    /// Locates the kernel by the guest's write of `lstar` to MSR_LSTAR.
    pub(crate) fn locate(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        lstar: Gva,
    ) -> Result<(), GuestError> {
        let slide = match kaslr_slide(lstar, self.running.kernel.symbols()) {
            Ok(slide) => slide,
            Err(error) => {
                if !self.turns_away_successor() && self.running.located.is_first_doubt() {
                    self.reporter
                        .note(None, format!("the kernel cannot be located yet: {error}"));
                }
                return Ok(());
            }
        };
        let linked = Gva(lstar.0.wrapping_sub(slide.cast_unsigned()));
        let state = vcpu.system_state()?;
        if !self.takes_over(&state.paging, slide) {
            return Ok(());
        }
        match walk(&self.running.memory.as_ref(), &state.paging, lstar) {
            Ok(found) => {
                let physical = Some(found.gpa.0.wrapping_sub(linked.0));
                self.running.located.set(Some(Located { slide, physical }));
                self.reporter.note(
                    None,
                    format!("the kernel runs at {slide:+#x} from where it was linked"),
                );
                if let Err(error) = self.armer.reconcile(paused) {
                    self.probes.refuse_pending(&error);
                }
            }
            Err(error) if self.running.located.is_first_doubt() => {
                self.reporter
                    .note(None, format!("the kernel cannot be located yet: {error}"));
            }
            Err(_) => (),
        }
        Ok(())
    }
}
