//! The optimised tier: a jump replaces a plant and targets a detour that counts or records. No exit at all.
//!
//! ```text
//!  plant            b8 01 00 00 00   mov eax, 1         behind an ftrace call   0f 1f 44 00 00   nop
//!  with its byte    ee 01 00 00 00                                              0f 1f 44 00 00
//!  optimised        e9 .. .. .. ..   jmp detour         plant ▶                 ee
//!                                                       optimised               e9 .. .. .. ..   jmp detour
//!                                                       plant, as before ▶      ee
//! ```
//!
//! A jump lies over one instruction with room for five bytes, so no task can be in the middle of the displaced code. If there is
//! no room, an `int3` on the first byte redirects the vCPU to the detour in the same way (`int3`). Jumps are written and removed
//! with the vCPUs paused; a vCPU or task inside the detour then continues there, and has been counted or will be. If a probe
//! needs more of a hit than the detour provides, the jump is removed first. `docs/optimised.md` has the reasons.

pub(crate) mod early;
pub(crate) mod entries;
pub(crate) mod int3;
pub(crate) mod int3s;
pub(crate) mod parts;
pub(crate) mod removal;
pub(crate) mod vcpu_set;
pub(crate) mod vcpus;
pub(crate) mod verdict;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use detour::{Detour, DetourError, KernelSpace, Lead, Tables};
use introspect::optimise::JUMP_BYTES;
use text::{GuestError, Jump, Paused, SystemState};

use crate::engine::arm::error::ArmError;
use crate::engine::optimise::early::Early;
use crate::engine::optimise::int3::Int3Handler;
use crate::engine::optimise::parts::{Parts, set_unoptimised};
use crate::engine::optimise::verdict::{NotOptimised, Verdicts};
use crate::engine::plants::Plants;
use crate::engine::probe_list::ProbeList;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::running::Running;
use crate::plant::Plant;
use crate::plant_table::Table;

/// The jump or `int3` that replaces a plant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Led {
    /// The plant's address.
    plant: Gva,
    lead: Lead,
}

/// Replaces plants by jumps and `int3`s, and removes them. The other vCPUs are paused.
#[derive(Debug)]
pub(crate) struct Optimiser {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) records: Arc<Records>,
    pub(crate) parts: Arc<Parts>,
    pub(crate) int3: Arc<Int3Handler>,
    pub(crate) early: Arc<Early>,
    pub(crate) verdicts: Arc<Verdicts>,
    pub(crate) detour: Arc<Detour>,
    /// The knob.
    pub(crate) wanted: AtomicBool,
    /// The addresses of jumps and `int3`s, each with its plant. Changed with the vCPUs paused.
    pub(crate) jumps: Mutex<BTreeMap<Gpa, Led>>,
}

impl Optimiser {
    fn jumps(&self) -> MutexGuard<'_, BTreeMap<Gpa, Led>> {
        self.jumps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the knob of optimisation, off by default: a session turns the knob on if requested. `false` makes every hit exit,
    /// `true` lets jumps replace plants again, where possible.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; the remaining jumps count on.
    pub(crate) fn set_optimising(&self, paused: &dyn Paused, wanted: bool) -> Result<(), ArmError> {
        self.wanted.store(wanted, Ordering::Release);
        let table = self.plants.table.load_full();
        if self.is_optimising() {
            let places: Vec<_> = table.plants().map(|plant| plant.at).collect();
            self.optimise_all(paused, &places);
            return Ok(());
        }
        for plant in table.plants() {
            self.unoptimise(paused, plant)
                .map_err(|error| ArmError(error.into()))?;
        }
        Ok(())
    }

    /// Prepares the survey and the clock for [`set_optimising`](Self::set_optimising): in a second or less, while the guest runs.
    pub(crate) fn prepare_optimising(&self) {
        let _ = self.running.kernel.survey();
        self.records.measure_clock();
    }

    /// The knob. A jump cannot be hidden.
    pub(crate) fn is_optimising(&self) -> bool {
        self.wanted.load(Ordering::Acquire) && !self.running.hides_plants()
    }

    /// Whether a jump may replace `plant`, as far as known: a pause to find out is worthwhile. Called at every hit.
    pub(crate) fn may_optimise(&self, plant: &Plant) -> bool {
        plant.optimising.is_open()
            && self.is_optimising()
            && self.parts.hindrance(plant).is_none()
            && (self.plants.kernel_is_settled() || self.early.may_be_early(plant))
    }

    /// Optimises the plants at `places` where possible. On failure a site keeps its plant.
    pub(crate) fn optimise_all(&self, paused: &dyn Paused, places: &[Gva]) {
        if !self.is_optimising() {
            return;
        }
        let kernel = self.known_kernel_space();
        let table = self.plants.table.load_full();
        for plant in places.iter().filter_map(|at| table.at(*at)) {
            self.report_hindrance(plant);
            if self.may_optimise(plant)
                && let Some(kernel) = &kernel
                && let Err(error) = self.optimise(paused, plant, kernel)
            {
                self.reporter
                    .note(None, format!("{} is not optimised: {error}", plant.at));
            }
        }
    }

    /// The kernel's page tables, if known without asking a vCPU.
    fn known_kernel_space(&self) -> Option<KernelSpace> {
        self.detour
            .kernel()
            .or_else(|| self.early.space())
            .or_else(|| {
                let paging = self.running.modules.paging()?;
                let located = self.running.located.get()?;
                Some(
                    self.running
                        .kernel_space_with(paging, located, Tables::Settled),
                )
            })
    }

    /// The page tables by which a vCPU with this state, which stands at `rip`, can reach a detour.
    pub(crate) fn space_for_detour(&self, state: &SystemState, rip: Gva) -> Option<KernelSpace> {
        match self.early.space() {
            Some(space) => {
                let linked = self.running.located.get()?.linked(rip);
                (!self.running.kernel.is_entry(linked)).then_some(space)
            }
            None => self.plants.kernel_space(state, rip),
        }
    }

    /// Replaces `plant` by a jump or an `int3`, if safe.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(crate) fn optimise(
        &self,
        paused: &dyn Paused,
        plant: &Plant,
        kernel: &KernelSpace,
    ) -> Result<(), GuestError> {
        self.tend_region(paused);
        // The plant may have changed since the look-up.
        let table = self.plants.table.load();
        let current = table.at(plant.at).filter(|now| now.spot == plant.spot);
        let Some(plant) = current.filter(|plant| self.parts.hindrance(plant).is_none()) else {
            return Ok(());
        };
        if plant.optimising.jump().is_some() {
            return Ok(());
        }
        plant.optimising.decide();
        let (served, uses) = self.parts.served(plant);
        let (jumped, gpa) = match self.verdicts.verdict(paused, plant, &uses, kernel) {
            Ok(found) => found,
            Err(why) => {
                if why == NotOptimised::Withdrawn {
                    plant.optimising.reopen();
                }
                set_unoptimised(plant, Some(&why.to_string()));
                return Ok(());
            }
        };
        let made = self
            .detour
            .make(paused, self.running.memory.as_ref(), kernel, &jumped, &uses);
        let jump = made.and_then(|made| {
            let jump = match jumped.lead() {
                Lead::Jump => made.jump_from(jumped.at())?,
                Lead::Int3 => {
                    self.int3.lead_by_int3(paused, jumped.at(), made.entry)?;
                    Jump::Int3
                }
            };
            Ok((jump, made))
        });
        let (jump, made) = match jump {
            Ok(found) => found,
            Err(error) => {
                if matches!(error, DetourError::HandlerInUse) {
                    plant.optimising.reopen();
                }
                set_unoptimised(plant, Some(&error.to_string()));
                return Ok(());
            }
        };
        // The records in the ring may be hits of the detour's former probe.
        self.records.take_out_records();
        for (served, part) in served.into_iter().zip(made.parts) {
            self.parts.serve(served, part)?;
        }
        if let Err(error) = self.running.planter.set_jump(paused, gpa, Some(jump)) {
            self.end_lead(plant.at);
            return Err(error.into());
        }
        set_unoptimised(plant, None);
        plant.optimising.set_jump(Some(gpa));
        let led = Led {
            plant: plant.at,
            lead: jumped.lead(),
        };
        self.jumps().insert(gpa, led);
        Ok(())
    }

    /// The kind of redirect at `gpa`, if any.
    pub(crate) fn leads(&self, gpa: Gpa) -> Option<Lead> {
        self.jumps().get(&gpa).map(|led| led.lead)
    }

    /// The address of the plant whose redirect is at `gpa`.
    pub(crate) fn plant_led_from(&self, gpa: Gpa) -> Option<Gva> {
        self.jumps().get(&gpa).map(|led| led.plant)
    }

    /// Reopens the verdicts on all plants without a redirect.
    pub(crate) fn reopen_all(&self) {
        let table = self.plants.table.load();
        table
            .plants()
            .filter(|plant| plant.optimising.jump().is_none())
            .for_each(|plant| plant.optimising.reopen());
    }

    /// Reopens the verdicts on plants near a guest write of `len` bytes at `gpa`.
    pub(crate) fn reopen(&self, table: &Table, gpa: Gpa, len: usize) {
        if !self.plants.kernel_is_settled() && !self.early.is_on() {
            return;
        }
        let end = gpa
            .0
            .saturating_add(len as u64)
            .saturating_add(JUMP_BYTES as u64);
        let first = gpa
            .0
            .saturating_sub(introspect::insn::MAX_LENGTH_BYTES as u64 - 1);
        for plant in (first..end).filter_map(|at| table.at_gpa(Gpa(at))) {
            if plant.optimising.jump().is_some() {
                continue;
            }
            plant.optimising.reopen_rewritten();
            if plant.optimising.is_rewritten_too_often() {
                set_unoptimised(plant, Some(&NotOptimised::RewrittenTooOften.to_string()));
            }
        }
    }

    /// Updates the reason after a change at `plant`: probes that a detour could serve may exit because of another probe.
    pub(crate) fn report_hindrance(&self, plant: &Plant) {
        if !self.is_optimising() {
            return;
        }
        if let Some(hindrance) = self.parts.hindrance(plant) {
            set_unoptimised(plant, Some(&hindrance.to_string()));
        } else if plant.optimising.is_open() {
            for (probe, _) in &plant.probes {
                probe.status.set_unoptimised(None);
            }
        }
    }
}
