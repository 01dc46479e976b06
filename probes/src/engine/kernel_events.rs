//! Kernel event probes: the engine's own probes at events of the guest's kernel.

use std::sync::Arc;

use events::ProbeId;
use text::{GuestError, Paused, Vcpu};

use crate::engine::arm::Armer;
use crate::engine::crashes::Crashes;
use crate::engine::handover::Handover;
use crate::engine::modules::ModuleWatch;
use crate::engine::optimise::Optimiser;
use crate::engine::optimise::early::Early;
use crate::engine::probe_list::ProbeList;
use crate::engine::reporter::Reporter;
use crate::engine::returns::Returns;
use crate::engine::returns::following::Following;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::engine::task_watch::TaskWatch;
use crate::engine::tasks::Tasks;
use crate::engine::uprobes::Uprobes;
use crate::kernel::Kernel;
use crate::plant::Plant;
use crate::registry::{FileEvent, KernelEvent, Mover, Probe, Purpose, Reader};
use crate::resolve::{Resolved, Via, resolve};

/// The kernel event probes possible in this kernel.
pub(crate) fn placed(kernel: &Kernel) -> Vec<Arc<Probe>> {
    let mut found: Vec<Arc<Probe>> = KernelEvent::ALL
        .into_iter()
        .filter_map(|kernel_event| placed_one(kernel, kernel_event))
        .collect();
    let has = |reader| found.iter().any(|probe| is_reader(probe, reader));
    if has(Reader::CheckProbe) && has(Reader::CheckOptimised) {
        // The two functions are the only decoders of text with possible plants. For each kprobe, the kernel calls
        // `insn_decode` thousands of times on other text, and each call would exit.
        found.retain(|probe| !is_reader(probe, Reader::Decode));
    }
    let moves = |probe: &Arc<Probe>, mover| matches!(probe.purpose, Purpose::KernelEvent(KernelEvent::File(FileEvent::Moved(of))) if of == mover);
    if found.iter().any(|probe| moves(probe, Mover::InnerFolio)) {
        // The outer function calls the inner one.
        found.retain(|probe| !moves(probe, Mover::Folio));
    }
    found
}

fn is_reader(probe: &Probe, reader: Reader) -> bool {
    matches!(probe.purpose, Purpose::KernelEvent(KernelEvent::Reader(other)) if other == reader)
}

fn placed_one(kernel: &Kernel, kernel_event: KernelEvent) -> Option<Arc<Probe>> {
    let function = kernel_event.function();
    // `resolve` would search all symbols for similar names.
    kernel.symbols().lookup(function)?;
    let spec = format!("kprobe:{function}").parse().ok()?;
    let Resolved { name, place } = resolve(kernel, &spec, 0).ok()?.pop()?;
    let place = place.ok()?;
    let is_optional = matches!(kernel_event, KernelEvent::Reader(_) | KernelEvent::File(_));
    if is_optional && place.via == Via::DebugRegister {
        // A user's probe has more use for the debug register.
        return None;
    }
    let purpose = Purpose::KernelEvent(kernel_event);
    let probe = Probe::new(ProbeId(0), name, purpose, Some(place), true);
    Some(Arc::new(probe))
}

/// Handles the kernel event probes. The other vCPUs are paused.
#[derive(Debug)]
pub(crate) struct KernelEvents {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) following: Arc<Following>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) early: Arc<Early>,
    pub(crate) optimiser: Arc<Optimiser>,
    pub(crate) returns: Arc<Returns>,
    pub(crate) armer: Arc<Armer>,
    pub(crate) crashes: Arc<Crashes>,
    pub(crate) module_watch: Arc<ModuleWatch>,
    pub(crate) task_watch: Arc<TaskWatch>,
    pub(crate) handover: Arc<Handover>,
    pub(crate) uprobes: Arc<Uprobes>,
}

impl KernelEvents {
    /// Handles the kernel event probes at `plant`. The vCPU stands at the plant, or a handler has `moved` the vCPU elsewhere. The
    /// other vCPUs are paused.
    pub(crate) fn handle_kernel_events(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        plant: &Plant,
        moved: bool,
    ) -> Result<(), GuestError> {
        for (probe, _) in &plant.probes {
            let Purpose::KernelEvent(kernel_event) = probe.purpose else {
                continue;
            };
            if moved && !kernel_event.is_served_when_moved() {
                continue;
            }
            match kernel_event {
                KernelEvent::EarlyTraps => self.early.begin_early_detours(vcpu)?,
                KernelEvent::BootPatched => self.on_boot_patched(vcpu, paused)?,
                KernelEvent::InitFreed => self.retire_init(paused),
                KernelEvent::Panic => self.crashes.record_panic(vcpu)?,
                KernelEvent::NextKernel => self.handover.hand_over(paused),
                KernelEvent::CpuOnline | KernelEvent::CpuOffline => {
                    self.optimiser.look_at_cpus(paused)?
                }
                KernelEvent::TaskEnded => self.returns.end_task(vcpu)?,
                KernelEvent::TaskStarted => {
                    let regs = vcpu.regs()?;
                    self.task_watch.on_start(paused, &regs)?;
                }
                KernelEvent::TaskLeft => self.returns.leave_task(vcpu.index()),
                KernelEvent::TaskFreed => {
                    let regs = vcpu.regs()?;
                    self.task_watch.on_end(paused, &regs)?;
                }
                KernelEvent::Module(event) => {
                    self.module_watch.on_module_event(vcpu, paused, event)?
                }
                KernelEvent::File(event) => {
                    let regs = vcpu.regs()?;
                    self.uprobes.on_event(paused, event, &regs)?;
                }
                KernelEvent::Reader(Reader::WriteJumps) => {
                    self.armer.make_room_for_jumps(vcpu, paused)?
                }
                // Other readers are handled after the vCPU has stepped over the instruction.
                KernelEvent::Reader(_) => (),
            }
        }
        Ok(())
    }

    /// Handles the end of boot-time patching: arms the probes on instructions that the kernel rewrites at boot.
    pub(crate) fn on_boot_patched(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
    ) -> Result<(), GuestError> {
        self.running.keep_page_tables(vcpu)?;
        self.tasks.look_for_first(vcpu)?;
        self.running.boot_patched.set(true);
        self.optimiser.end_early_detours(paused)?;
        self.return_sites.allow(|_| true);
        self.return_sites.landings.forget_read();
        self.armer.protect_text(paused);
        if let Err(error) = self.armer.reconcile(paused) {
            self.probes.refuse_pending(&error);
        }
        Ok(())
    }

    /// Removes the plants from the init text, which the kernel is about to free.
    fn retire_init(&self, paused: &dyn Paused) {
        self.running.init_freed.set(true);
        self.task_watch.on_booted();
        if let Some(located) = self.running.located.get() {
            self.following
                .lose_return_sites(|site| !self.running.kernel.is_init(located.linked(site)));
        }
        if let Err(error) = self.armer.reconcile(paused) {
            self.probes.refuse_pending_watches(&error);
            self.reporter
                .note(None, format!("plants in the init text stay: {error}"));
        }
    }
}
