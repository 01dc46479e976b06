//! Arming and disarming: from probes to plants, in one transaction.

pub(crate) mod edits;
pub(crate) mod error;
pub(crate) mod in_registers;
pub(crate) mod jumps;
pub(crate) mod new_state;
mod next;
pub(crate) mod placing;
pub(crate) mod register_sites;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use address::{Gpa, Gva};
use events::ProbeState;
use text::Paused;
use vmm::PageRange;

use crate::engine::arm::edits::{Change, Edits, Sites};
use crate::engine::arm::error::ArmError;
use crate::engine::arm::new_state::NewState;
use crate::engine::arm::register_sites::RegisterHolders;
use crate::engine::optimise::Optimiser;
use crate::engine::optimise::int3::Int3Handler;
use crate::engine::plants::Plants;
use crate::engine::probe_list::ProbeList;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::following::Following;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::engine::running::arming::Arming;
use crate::engine::uprobes::Uprobes;
use crate::engine::watch::Watches;
use crate::engine::watch::registers::registers_of;
use crate::engine::watch::table::{Watch, WatchTable};
use crate::engine::write::stand_in::leave_unwatched;
use crate::plant::Plant;
use crate::registry::Probe;
use crate::resolve::{WORDS_MAX, WatchProblem};

/// The pages would stay protected when the kernel uses them for other data.
const UNSEEN_MODULES: &str = "hyprobe cannot see when the kernel frees a module: its own probe there is refused, or the kernel has several functions of the name";
const UNSEEN_TASKS: &str = "hyprobe cannot see when the kernel starts and frees tasks: its own probe there is refused, or the kernel has several functions of the name";

/// Reconciles plants with probes. The other vCPUs are paused.
#[derive(Debug)]
pub(crate) struct Armer {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) records: Arc<Records>,
    pub(crate) following: Arc<Following>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) int3: Arc<Int3Handler>,
    pub(crate) optimiser: Arc<Optimiser>,
    pub(crate) registers: RegisterHolders,
    pub(crate) watches: Arc<Watches>,
    pub(crate) uprobes: Arc<Uprobes>,
}

impl Armer {
    /// Reconciles all plants with all probes; see [`change`](Self::change).
    pub(crate) fn reconcile(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.change(
            paused,
            Change {
                probes: &self.probes.list.load_full(),
                dropped: &[],
                sites: Sites::All,
            },
        )
    }

    /// Reconciles the plants within `change` with the probes: in a transaction, with the other vCPUs paused. Afterwards the
    /// state of each probe is up to date, with the reason if the probe is not armed.
    pub(crate) fn change(&self, paused: &dyn Paused, change: Change<'_>) -> Result<(), ArmError> {
        let Some(located) = self.running.located.get() else {
            return Ok(());
        };
        // Records are reported while their probe exists.
        self.records.take_out_records();
        let was_handler_probed = self.int3.is_int3_handler_probed();
        let table = self.plants.table.load_full();
        let mut watched = self.watches.outside(change);
        let mut edits = Edits::new(&table, self.running.hides_plants());
        let kept = registers_of(&watched).and_then(|registers| edits.watch(registers));
        kept.map_err(|error| ArmError(error.into()))?;
        let mut registers = self.register_sites(&change);
        let looked_at = || self.plants.kernel_event_probes.iter().chain(change.probes);
        for probe in looked_at().chain(change.dropped) {
            edits.leave(probe);
        }
        let registered = || change.probes.iter();
        registered().for_each(|probe| self.probes.count_interest(probe));
        let dropped = change.dropped.iter();
        dropped.for_each(|probe| self.probes.forget_interest(probe));
        let interest = self.probes.interest();
        if self.return_sites.set_must_exit(interest.exits_at_returns) {
            for plant in table.plants().filter(|plant| plant.returns) {
                self.optimiser
                    .unoptimise(paused, plant)
                    .map_err(|error| ArmError(error.into()))?;
                self.optimiser.report_hindrance(plant);
            }
        }
        let mut states = Vec::new();
        // The kernel event probes come first.
        let mut sees_modules_go = self.plants.have_module_events();
        let mut sees_tasks = self.plants.have_task_events();
        for probe in looked_at() {
            let mut state = self.becomes(probe, located, interest, &mut registers, &mut edits);
            if !matches!(state, NewState::Armed { .. }) {
                sees_modules_go &= !probe.sees_modules_go();
                sees_tasks &= !probe.sees_tasks();
            }
            if let NewState::Watching(pieces) = &state {
                let words = pieces.iter().flat_map(|piece| piece.words(probe));
                let words: Vec<Watch> = words.collect();
                if probe.in_module.is_some() && !sees_modules_go {
                    state = NewState::Refused(UNSEEN_MODULES.to_owned());
                } else if probe.in_task.is_some() && !sees_tasks {
                    state = NewState::Refused(UNSEEN_TASKS.to_owned());
                } else if watched.len() + words.len() > WORDS_MAX {
                    // Per-CPU data has been counted as one copy.
                    let problem = WatchProblem::TooManyWords { most: WORDS_MAX };
                    state = NewState::Refused(problem.to_string());
                } else if let Err(why) = self.watches.take_registers(&words, &mut edits) {
                    state = NewState::Refused(why.to_string());
                } else {
                    watched.extend(words);
                }
            }
            states.push((probe, state));
        }
        let armed = self.probes.armed.load(Ordering::Acquire);
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
            match self.running.arming_return_site(site, located) {
                Arming::Plant { at, spot, len } if wanted => edits.return_to(at, spot, len),
                _ => edits.forget_return(site),
            }
        }
        let places = edits.places();
        self.optimiser
            .make_room_for_plants(paused, edits.spots())
            .map_err(|error| ArmError(error.into()))?;
        for plant in edits.outdated() {
            self.optimiser
                .unoptimise(paused, &plant)
                .map_err(|error| ArmError(error.into()))?;
        }
        let before = Arc::clone(&table);
        let watched_before = self
            .watches
            .replace(paused, WatchTable::new(watched))
            .map_err(|error| ArmError(error.into()))?;
        let applied = edits
            .apply(paused, &self.running.planter)
            .map_err(Into::into);
        let applied = applied.and_then(|(table, left)| {
            if self.running.hides_plants() {
                let pages = table.pages().collect();
                self.watches.protections.hide_text(paused, pages)?;
            }
            Ok((table, left))
        });
        let (table, left) = match applied {
            Ok(applied) => applied,
            Err(error) => {
                let restored = self.watches.replace(paused, (*watched_before).clone());
                return Err(ArmError(match restored {
                    Ok(_) => error,
                    Err(error) => error.into(),
                }));
            }
        };
        for plant in &left {
            self.give_up_register(paused, plant);
        }
        self.plants.replace_table(paused, table);
        self.following
            .forbid_recording(&before, &places)
            .map_err(|error| ArmError(error.into()))?;
        self.registers.replace(registers);
        for probe in change.dropped {
            probe.set_planted(None);
            probe.count_in_none();
        }
        for (probe, state) in states {
            let planted_at = match &state {
                NewState::Armed { at, .. } => Some(*at),
                NewState::Watching(pieces) => pieces.first().map(|piece| piece.at),
                _ => None,
            };
            probe.set_planted(planted_at);
            match state {
                NewState::Armed { ip, .. } => {
                    if probe.status.state() != ProbeState::Armed {
                        // What it was before it was disabled.
                        probe.tier.set_optimised(false);
                    }
                    probe.status.set_armed(ip.into());
                }
                NewState::Watching(_) => {
                    let at = planted_at.unwrap_or_default();
                    probe.status.set_armed(at.into());
                }
                NewState::Pending(reason) => {
                    probe.status.set_state(ProbeState::Pending, Some(reason));
                }
                NewState::Disabled => probe.status.set_state(ProbeState::Disabled, None),
                NewState::Gone => probe.status.set_state(ProbeState::Gone, None),
                NewState::Refused(reason) => self.probes.refuse(probe, reason),
                NewState::AsItIs => (),
            }
        }
        self.retarget_programs(paused)?;
        // Some probes have been refused.
        registered().for_each(|probe| self.probes.count_interest(probe));
        self.optimiser.optimise_all(paused, &places);
        if was_handler_probed && !self.int3.is_int3_handler_probed() {
            self.optimiser.restore_int3s(paused);
        }
        Ok(())
    }

    /// Handles a withdrawn plant whose debug register is needed elsewhere. The guest may be about to compare what it has written there, whenever that
    /// was, so the plant does not return; but nothing else would report an event of the kernel.
    fn give_up_register(&self, paused: &dyn Paused, plant: &Plant) {
        match plant.has_kernel_events() {
            true => {
                // The byte of a plant in RAM is written without a failure.
                let _ = self.running.planter.replant(paused, plant.spot.gpa);
            }
            false => leave_unwatched(&self.plants, &self.reporter, plant),
        }
    }

    /// Probes exactly the programs of the registered and enabled probes.
    fn retarget_programs(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        let armed = self.probes.armed.load(Ordering::Acquire);
        let probes = self.probes.list.load_full();
        let mut wanted = Vec::new();
        for probe in probes.iter().filter(|probe| probe.in_program.is_some()) {
            match probe.status.state() {
                ProbeState::Gone | ProbeState::Refused => (),
                _ if armed && probe.is_enabled() => wanted.push(Arc::clone(probe)),
                _ => probe.status.set_state(ProbeState::Disabled, None),
            }
        }
        self.uprobes
            .retarget(paused, &wanted)
            .map_err(|error| ArmError(error.into()))
    }

    /// Makes the whole text read-only, so a further plant in the text changes no memory slot. Called after the kernel has
    /// patched itself for this machine: from then on, the kernel rarely writes to the text.
    pub(crate) fn protect_text(&self, paused: &dyn Paused) {
        if self.running.hides_plants() {
            return;
        }
        let range = self
            .running
            .located
            .get()
            .zip(self.running.kernel.text())
            .and_then(|(located, text)| {
                let start = self.running.gpa_of(text.start, located)?;
                let last = self
                    .running
                    .gpa_of(Gva(text.end.0.checked_sub(1)?), located)?;
                Some(PageRange::covering(start, Gpa(last.0 + 1)))
            });
        if let Some(range) = range
            && let Err(error) = self.running.planter.protect(paused, range)
        {
            self.reporter.note(
                None,
                format!("the kernel's text cannot be made read-only as a whole: {error}"),
            );
        }
    }
}

impl Armer {
    pub(crate) fn change_sites(&self, paused: &dyn Paused, sites: &[Gva]) -> Result<(), ArmError> {
        let change = Change {
            probes: &[],
            dropped: &[],
            sites: Sites::These(sites),
        };
        self.change(paused, change)
    }

    pub(crate) fn change_probes(
        &self,
        paused: &dyn Paused,
        probes: &[Arc<Probe>],
        dropped: &[Arc<Probe>],
    ) -> Result<(), ArmError> {
        let change = Change {
            probes,
            dropped,
            sites: Sites::These(&[]),
        };
        self.change(paused, change)
    }
}
