//! Arming and disarming: from probes to plants, in one transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use errors::chain;
use introspect::Gva;
use vm_memory::GuestAddress;
use vmm::{HardwareBreakpoints, PageRange};

use super::Engine;
use super::edits::{Change, Edits, Sites};
use super::interest::Interest;
use super::located::Located;
use super::placing::Arming;
use crate::ProbeState;
use crate::guest::Paused;
use crate::hit::Table;
use crate::registry::{Milestone, Probe, Purpose};

/// The probes could not be armed; probes armed before still are.
#[derive(Debug, thiserror::Error)]
#[error("cannot arm the probes")]
pub struct ArmError(#[source] pub(super) Box<dyn std::error::Error + Send + Sync>);

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

    /// Marks every probe as pending: the kernel unpacks itself, and the kernel's address is unknown until MSR_LSTAR is
    /// written.
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

    /// Reconciles the plants within `change` with the probes: in a transaction, with the other vCPUs paused. Afterwards the
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
                NewState::Armed { ip, .. } => {
                    if probe.state() != ProbeState::Armed {
                        // What it was before it was disabled.
                        probe.set_optimised(false);
                    }
                    probe.set_armed(ip.into());
                }
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

    /// Whether the probe keeps its plant while the knob removes all others: the probe reports the reuse of memory to which
    /// plants would return, and the engine cannot detect the reuse later.
    fn stays_while_disarmed(&self, probe: &Probe) -> bool {
        match probe.purpose {
            Purpose::Milestone(Milestone::BootPatched) => !self.boot_patched.get(),
            Purpose::Milestone(Milestone::InitFreed) => !self.init_freed.get(),
            Purpose::Milestone(Milestone::NextKernel) => true,
            _ => false,
        }
    }

    /// Makes the whole text read-only, so a further plant in the text changes no memory slot. Called after the kernel has
    /// patched itself for this machine: from then on, the kernel rarely writes to the text.
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
        let reason = chain(error);
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
