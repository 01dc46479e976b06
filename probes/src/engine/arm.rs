//! Arming and disarming: from probes to plants, in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use introspect::kaslr::kaslr_slide;
use introspect::{Gpa, Gva, PatchSite, PatchTime, walk};
use vm_memory::GuestAddress;
use vmm::{HardwareBreakpoints, PageRange};

use super::Engine;
use super::edits::{Change, Edits, Sites};
use super::interest::Interest;
use super::jumps::{ELSEWHERE, INT3};
use crate::ProbeState;
use crate::guest::{GuestError, Paused, Vcpu};
use crate::hit::{Table, own_instruction};
use crate::plant::Spot;
use crate::registry::{Milestone, Probe, Purpose};
use crate::resolve::{Place, Via, When};

/// The probes could not be armed; probes armed before still are.
#[derive(Debug, thiserror::Error)]
#[error("cannot arm the probes")]
pub struct ArmError(#[source] pub(super) Box<dyn std::error::Error + Send + Sync>);

/// The location of the running kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// Run-time less link-time address.
    pub(crate) slide: i64,
    /// For a kernel that has moved: guest-physical less link-time address. `None` if the kernel lies at the physical addresses of
    /// its file.
    physical: Option<u64>,
}

impl Located {
    /// The link-time address of a run-time one.
    pub(super) fn linked(self, running: Gva) -> Gva {
        Gva(running.0.wrapping_sub(self.slide.cast_unsigned()))
    }

    /// The run-time address of `at`, an address in the terms of `place`.
    fn running_at(self, place: &Place, at: Gva) -> Gva {
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

/// The reason why a late probe cannot be on the pushes of the #BP handler.
const REDIRECTED: &str = "hyprobe redirects the kernel's #BP handler here, for probes whose plant is an int3: ask for this probe before the guest starts, or turn optimisation off";

/// The way to arm a probe now.
enum Arming {
    Plant {
        at: Gva,
        spot: Spot,
        len: usize,
    },
    Debug {
        at: Gva,
        spot: Spot,
    },
    /// The probe cannot be armed yet.
    Later(&'static str),
    Refused(String),
}

/// The instruction at a possible return address, with its location, if any.
pub(super) enum CallSite {
    /// The kernel does not patch the instruction any more.
    Free(Option<(Gpa, Decoded)>),
    /// The kernel may still rewrite the instruction while booting.
    PatchedAtBoot(Option<(Gpa, Decoded)>),
    /// The kernel patches the instruction at run time.
    Patched {
        /// The patch site, at run-time addresses.
        site: PatchSite,
        code: Option<(Gpa, Decoded)>,
    },
}

impl Engine {
    /// Arms the probes of a kernel loaded at its link address, before the kernel's first instruction.
    ///
    /// # Errors
    ///
    /// If a plant cannot be placed; no byte has been changed then.
    pub fn arm_loaded(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.located.set(Some(Located {
            slide: 0,
            physical: None,
        }));
        self.reconcile(paused)
    }

    /// Marks every probe as pending: the kernel unpacks itself, and its address is unknown until MSR_LSTAR is written.
    pub fn await_kernel(&self) {
        for probe in self
            .probes
            .load()
            .iter()
            .filter(|probe| probe.state() == ProbeState::Pending && probe.place().is_some())
        {
            probe.set_state(
                ProbeState::Pending,
                Some("the kernel has not said where it is".to_owned()),
            );
        }
    }

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

    /// Reconciles all plants with all probes; see [`change`](Self::change).
    pub(super) fn reconcile(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.change(
            paused,
            Change {
                probes: &self.probes.load_full(),
                dropped: &[],
                sites: Sites::All,
            },
        )
    }

    /// Reconciles the plants within `change` with the probes: in one transaction, with the other vCPUs paused. Afterwards the
    /// state of each probe is up to date, with the reason if the probe is not armed.
    pub(super) fn change(&self, paused: &dyn Paused, change: Change<'_>) -> Result<(), ArmError> {
        let Some(located) = self.located.get() else {
            return Ok(());
        };
        // Records are reported while their probe exists.
        self.take_out_records();
        let was_handler_probed = self.is_int3_handler_probed();
        let table = self.table.load_full();
        let mut edits = Edits::new(&table);
        let looked_at = || self.milestones.iter().chain(change.probes);
        for probe in looked_at().chain(change.dropped) {
            edits.leave(probe);
        }
        let registered = || change.probes.iter();
        registered().for_each(|probe| self.count_interest(probe));
        let dropped = change.dropped.iter();
        dropped.for_each(|probe| self.forget_interest(probe));
        let interest = self.interest();
        if self.return_sites.set_must_exit(interest.exits_at_returns) {
            for plant in table.plants().filter(|plant| plant.returns) {
                self.unoptimise(paused, plant)
                    .map_err(|error| ArmError(error.into()))?;
                self.report_hindrance(plant);
            }
        }
        let states: Vec<_> = looked_at()
            .map(|probe| (probe, self.becomes(probe, located, interest, &mut edits)))
            .collect();
        let armed = self.armed.load(Ordering::Acquire);
        let sites = match change.sites {
            Sites::These(sites) => sites.to_vec(),
            Sites::All => {
                let planted = table.plants().filter(|plant| plant.returns);
                let planted = planted.map(|plant| plant.at).collect::<Vec<_>>();
                [self.return_sites.all(), planted].concat()
            }
        };
        for site in sites {
            let wanted = armed && self.return_sites.has(site);
            match self.arming_return_site(site, located) {
                Arming::Plant { at, spot, len } if wanted => edits.return_to(at, spot, len),
                _ => edits.forget_return(site),
            }
        }
        let places = edits.places();
        self.make_room_for_plants(paused, edits.spots())
            .map_err(|error| ArmError(error.into()))?;
        for plant in edits.outdated() {
            self.unoptimise(paused, &plant)
                .map_err(|error| ArmError(error.into()))?;
        }
        let before = Arc::clone(&table);
        let table = edits
            .apply(paused, &self.planter)
            .map_err(|error| ArmError(error.into()))?;
        self.replace_table(paused, table);
        self.forbid_recording(&before, &places)
            .map_err(|error| ArmError(error.into()))?;
        for probe in change.dropped {
            probe.set_planted(None);
            probe.count_in_none();
        }
        for (probe, state) in states {
            let planted_at = match &state {
                NewState::Armed { at, .. } => Some(*at),
                _ => None,
            };
            probe.set_planted(planted_at);
            match state {
                NewState::Armed { ip, .. } => probe.set_armed(ip.into()),
                NewState::Pending(reason) => {
                    probe.set_state(ProbeState::Pending, Some(reason.to_owned()))
                }
                NewState::Disabled => probe.set_state(ProbeState::Disabled, None),
                NewState::Gone => probe.set_state(ProbeState::Gone, None),
                NewState::Refused(reason) => self.refuse(probe, reason),
                NewState::AsItIs => (),
            }
        }
        // Some probes have been refused.
        registered().for_each(|probe| self.count_interest(probe));
        self.optimise_all(paused, &places);
        if was_handler_probed && !self.is_int3_handler_probed() {
            self.let_int3s_return(paused);
        }
        Ok(())
    }

    /// Computes the next state of a probe, and adds the edit of its site to `edits`.
    fn becomes(
        &self,
        probe: &Arc<Probe>,
        located: Located,
        interest: Interest,
        edits: &mut Edits<'_>,
    ) -> NewState {
        let gone = matches!(probe.state(), ProbeState::Gone | ProbeState::Refused);
        let idle = match probe.purpose {
            Purpose::Milestone(Milestone::CpuOnline | Milestone::CpuOffline) => !self.has_int3(),
            Purpose::Milestone(Milestone::TaskEnded | Milestone::TaskLeft) => !interest.calls,
            Purpose::Milestone(Milestone::Module(_)) => !interest.modules,
            Purpose::Milestone(Milestone::Reader(_)) => !interest.plants,
            _ => false,
        };
        let Some(place) = probe.place().filter(|_| !gone && !idle) else {
            return NewState::AsItIs;
        };
        if place.init && place.module.is_none() && self.init_freed.get() {
            return NewState::Gone;
        }
        let is_armed = self.armed.load(Ordering::Acquire) || self.stays_while_disarmed(probe);
        if !is_armed || !probe.is_enabled() {
            return NewState::Disabled;
        }
        let ip = located.running_at(&place, place.ip);
        match self.arming(&place, located) {
            Arming::Plant { at, spot, len } => {
                edits.join(probe, ip, at, spot, len);
                NewState::Armed { ip, at }
            }
            Arming::Debug { at, spot } if edits.join_debug(probe, ip, at, spot) => {
                NewState::Armed { ip, at }
            }
            Arming::Debug { .. } => NewState::Refused(
                "the kernel patches this instruction itself at run time, and all four debug registers are taken"
                    .to_owned(),
            ),
            Arming::Later(reason) => NewState::Pending(reason),
            Arming::Refused(reason) => NewState::Refused(reason),
        }
    }

    /// Whether the probe keeps its plant while the knob removes all others. Such a probe reports an event that cannot be found
    /// out later: memory to which plants would return has been reused.
    fn stays_while_disarmed(&self, probe: &Probe) -> bool {
        match probe.purpose {
            Purpose::Milestone(Milestone::BootPatched) => !self.boot_patched.get(),
            Purpose::Milestone(Milestone::InitFreed) => !self.init_freed.get(),
            Purpose::Milestone(Milestone::NextKernel) => true,
            _ => false,
        }
    }

    /// Whether a plant is possible at the return address `site`.
    pub(super) fn can_return_to(&self, site: Gva) -> bool {
        let Some(located) = self.located.get() else {
            return false;
        };
        let Arming::Plant { spot, .. } = self.arming_return_site(site, located) else {
            return false;
        };
        // The value at the return address's slot may be no return address: another jump may have entered the function. A plant in
        // the middle of an instruction would change the instruction.
        let linked = located.linked(site);
        !self.kernel.holds_code(linked) || self.boundary_in_memory(linked, spot.gpa).is_some()
    }

    /// The call site at `at`, a possible return address.
    pub(super) fn call_site(&self, at: Gva) -> CallSite {
        let Some(located) = self.located.get() else {
            return CallSite::Free(None);
        };
        let linked = located.linked(at);
        let (site, spot) = if self.kernel.holds_code(linked) {
            let running = |linked: Gva| linked.wrapping_add(located.slide.cast_unsigned());
            let site = self.kernel.sites().overlapping(linked, 1);
            let site = site.map(|site| PatchSite {
                address: running(site.address),
                target: site.target.map(running),
                ..site
            });
            (site, self.gpa_of(linked, located).map(Spot::contiguous))
        } else if let Some(module) = self.modules.holding(at) {
            (module.patched(at, 1), module.spot(at))
        } else {
            (None, None)
        };
        let code =
            spot.and_then(|spot| Some((spot.gpa, own_instruction(&self.planter, spot, at)?)));
        match site {
            Some(site) if site.kind.when() == PatchTime::Runtime => {
                CallSite::Patched { site, code }
            }
            Some(_) if !self.boot_patched.get() => CallSite::PatchedAtBoot(code),
            _ => CallSite::Free(code),
        }
    }

    fn arming_return_site(&self, site: Gva, located: Located) -> Arming {
        let linked = located.linked(site);
        let (patched, spot) = if self.kernel.holds_code(linked) {
            if self.init_freed.get() && self.kernel.is_init(linked) {
                return Arming::Refused("its code was freed when the kernel had booted".to_owned());
            }
            let patched = self.kernel.sites().overlapping(linked, 1);
            (patched, self.gpa_of(linked, located).map(Spot::contiguous))
        } else if let Some(module) = self.modules.holding(site) {
            (module.patched(site, 1), module.spot(site))
        } else {
            return Arming::Refused("it is not in the kernel's text".to_owned());
        };
        let patched = patched.map(|site| site.kind.when());
        let waits = patched == Some(PatchTime::BootOnly) && !self.boot_patched.get();
        if patched == Some(PatchTime::Runtime) || waits {
            return Arming::Refused("the kernel patches it".to_owned());
        }
        let Some(spot) = spot else {
            return Arming::Refused("it is not in memory".to_owned());
        };
        match own_instruction(&self.planter, spot, site) {
            Some(decoded) => Arming::Plant {
                at: site,
                spot,
                len: decoded.len(),
            },
            None => Arming::Refused("no instruction begins there".to_owned()),
        }
    }

    /// The guest-physical location of `at`, an address in the terms of `place`.
    fn spot_of(&self, place: &Place, at: Gva, located: Located) -> Option<Spot> {
        match place.module {
            Some(module) => self.modules.at(module)?.spot(at),
            None => self.gpa_of(at, located).map(Spot::contiguous),
        }
    }

    pub(super) fn gpa_of(&self, linked: Gva, located: Located) -> Option<Gpa> {
        match located.physical {
            Some(offset) => Some(Gpa(linked.0.wrapping_add(offset))),
            None => self.kernel.to_physical(linked),
        }
    }

    /// Makes the whole text read-only, so that further plants there change no memory slot. Called once the kernel has patched
    /// itself for this machine, and rarely writes to its text any more.
    pub(super) fn protect_text(&self, paused: &dyn Paused) {
        let range = self
            .located
            .get()
            .zip(self.kernel.text())
            .and_then(|(located, text)| {
                let start = self.gpa_of(text.start, located)?;
                let last = self.gpa_of(Gva(text.end.0.checked_sub(1)?), located)?;
                Some(PageRange::covering(
                    GuestAddress(start.0),
                    GuestAddress(last.0 + 1),
                ))
            });
        if let Some(range) = range
            && let Err(error) = self.planter.protect(paused, range)
        {
            self.note(
                None,
                format!("the kernel's text cannot be made read-only as a whole: {error}"),
            );
        }
    }

    /// The way to arm `place` now.
    fn arming(&self, place: &Place, located: Located) -> Arming {
        if place.when == When::BootPatched && !self.boot_patched.get() {
            return Arming::Later("the kernel rewrites this instruction while it boots");
        }
        let linked = match place.via {
            Via::Plant { at, .. } => at,
            Via::DebugRegister => place.ip,
        };
        let Some(spot) = self.spot_of(place, linked, located) else {
            return Arming::Refused(match place.module {
                Some(_) => format!("{linked} is not in memory"),
                None => format!("{linked} is not in the kernel's image"),
            });
        };
        let at = located.running_at(place, linked);
        match place.via {
            Via::DebugRegister if self.abilities.debug_execute => Arming::Debug { at, spot },
            Via::DebugRegister => Arming::Refused(
                "the kernel patches this instruction itself at run time, and debug registers do not work on this host".to_owned(),
            ),
            // The instruction was checked when planted; by now the guest's own kprobes may have changed the bytes.
            Via::Plant { len, .. } if self.has_plant(at, spot) => Arming::Plant { at, spot, len },
            Via::Plant { .. } if self.is_redirected(spot.gpa) => {
                Arming::Refused(REDIRECTED.to_owned())
            }
            Via::Plant { .. }
                if place.module.is_none()
                    && self.boot_patched.get()
                    && self.is_jumped_over(linked, spot.gpa) =>
            {
                Arming::Refused(ELSEWHERE.to_owned())
            }
            Via::Plant { len, .. } if place.when == When::TextPresent => Arming::Plant { at, spot, len },
            Via::Plant { .. } => match self.boundary_in_memory(linked, spot.gpa) {
                Some(len) => Arming::Plant { at, spot, len },
                None => Arming::Refused(
                    "the kernel has rewritten this code while it booted, and no instruction begins there now".to_owned(),
                ),
            },
        }
    }

    fn has_plant(&self, at: Gva, spot: Spot) -> bool {
        let table = self.table.load();
        table.at(at).is_some_and(|plant| plant.spot == spot)
    }

    /// The length of the instruction at `linked`, if an instruction begins there in the present text.
    fn boundary_in_memory(&self, linked: Gva, gpa: Gpa) -> Option<usize> {
        let within = self.kernel.symbols().resolve(linked)?;
        let start = gpa.0.checked_sub(within.offset)?;
        let linked_at = |at: u64| within.symbol.address.wrapping_add(at - start);
        // The next instruction boundary in the file, as far as the file's code can be decoded.
        let mut filed = Some(within.symbol.address);
        let mut len = |at: u64| {
            let linked = linked_at(at);
            while let Some(next) = filed.filter(|filed| *filed < linked) {
                filed = self
                    .filed_instruction(next)
                    .map(|filed| next.wrapping_add(filed.len() as u64));
            }
            self.len_in_memory(linked, Gpa(at), filed == Some(linked))
        };
        let mut at = start;
        while at < gpa.0 {
            at += len(at)? as u64;
        }
        (at == gpa.0).then(|| len(at))?
    }

    /// The length of the instruction in memory at `gpa`, ignoring a breakpoint of the guest's own. Such a breakpoint is an `int3`
    /// with the rest of an instruction of the file behind. The remainder of a shortened `ret` is not a breakpoint: no instruction
    /// of the file begins there.
    fn len_in_memory(&self, linked: Gva, gpa: Gpa, is_filed: bool) -> Option<usize> {
        let mut bytes = [0; MAX_LENGTH_BYTES];
        self.planter.read_own(gpa, &mut bytes).ok()?;
        if is_filed
            && bytes[0] == INT3
            && let Some(filed) = self.filed_instruction(linked)
            && filed.bytes()[1..] == bytes[1..filed.len()]
        {
            return Some(filed.len());
        }
        Some(decode(&bytes, linked).ok()?.len())
    }

    /// The instruction that begins at `linked` in the kernel's file.
    fn filed_instruction(&self, linked: Gva) -> Option<Decoded> {
        decode(self.kernel.bytes_at(linked, MAX_LENGTH_BYTES)?, linked).ok()
    }

    /// Makes `table` the table for look-ups by vCPUs, and sets the debug registers accordingly.
    pub(super) fn replace_table(&self, paused: &dyn Paused, mut table: Table) {
        self.watch_again(&mut table);
        let execute = table
            .debug
            .each_ref()
            .map(|used| used.as_ref().map(|used| used.plant().at.0));
        paused.set_breakpoints(HardwareBreakpoints { execute });
        self.table.store(Arc::new(table));
    }

    pub(super) fn refuse(&self, probe: &Probe, reason: String) {
        self.note(Some(probe), format!("cannot be armed: {reason}"));
        probe.set_state(ProbeState::Refused, Some(reason));
        self.count_interest(probe);
    }

    /// Refuses all pending probes after arming failed while the guest runs: the guest continues without them.
    pub(super) fn refuse_pending(&self, error: &ArmError) {
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        for probe in self
            .probes
            .load()
            .iter()
            .filter(|probe| probe.state() == ProbeState::Pending && probe.place().is_some())
        {
            self.refuse(probe, reason.clone());
        }
    }
}

/// The next state of a probe.
enum NewState {
    /// The probe is at `ip`; the plant or the debug register is at `at`.
    Armed {
        ip: Gva,
        at: Gva,
    },
    /// The probe has no address, is gone, was refused, or is a kernel event probe that is not needed now.
    AsItIs,
    Pending(&'static str),
    Disabled,
    /// The probe's code has been freed.
    Gone,
    Refused(String),
}
