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

mod early;
mod int3;
mod sharing;
mod vcpus;
mod verdict;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use detour::{DetourError, KernelSpace, Lead, Tables};
use events::ProbeState;
use introspect::{Gpa, Gva};
use text::{GuestError, Jump, Paused, Spot, SystemState};

use super::Engine;
use super::arm::ArmError;
use crate::hit::{Plant, Table};
use crate::registry::{Milestone, Purpose};
use early::Early;
use int3::Int3Way;
use sharing::set_unoptimised;
use verdict::NotOptimised;

/// Bytes of a jump.
const JUMP_BYTES: u64 = 5;

/// The state of optimisation.
#[derive(Debug)]
pub(super) struct Optimised {
    /// The knob.
    wanted: AtomicBool,
    /// The addresses of jumps and `int3`s, each with its plant. Changed with the vCPUs paused.
    jumps: Mutex<BTreeMap<Gpa, Led>>,
    int3: Int3Way,
    early: Early,
}

impl Default for Optimised {
    fn default() -> Self {
        Self {
            wanted: AtomicBool::new(false),
            jumps: Mutex::default(),
            int3: Int3Way::default(),
            early: Early::default(),
        }
    }
}

/// The jump or `int3` that replaces a plant.
#[derive(Clone, Copy, Debug)]
struct Led {
    /// The plant's address.
    plant: Gva,
    lead: Lead,
}

impl Optimised {
    fn jumps(&self) -> MutexGuard<'_, BTreeMap<Gpa, Led>> {
        self.jumps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Sets the knob of optimisation, off by default: a session turns the knob on if requested. `false` makes every hit exit,
    /// `true` lets jumps replace plants again, where possible.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; the remaining jumps count on.
    pub fn set_optimising(&self, paused: &dyn Paused, wanted: bool) -> Result<(), ArmError> {
        self.optimised.wanted.store(wanted, Ordering::Release);
        let table = self.table.load_full();
        if wanted {
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
    pub fn prepare_optimising(&self) {
        let _ = self.kernel.survey();
        self.records.measure_clock();
    }

    /// The knob.
    pub fn is_optimising(&self) -> bool {
        self.optimised.wanted.load(Ordering::Acquire)
    }

    /// Whether a jump may replace `plant`, as far as known: a pause to find out is worthwhile. Called at every hit.
    pub(super) fn may_optimise(&self, plant: &Plant) -> bool {
        plant.optimising.is_open()
            && self.is_optimising()
            && self.hindrance(plant).is_none()
            && (self.kernel_is_settled() || self.may_be_early(plant))
    }

    /// Whether the kernel's page tables and its text are final, apart from run-time patching.
    pub(super) fn kernel_is_settled(&self) -> bool {
        let boots =
            |purpose: &Purpose| matches!(purpose, Purpose::Milestone(Milestone::BootPatched));
        self.located.get().is_some()
            && (self.boot_patched.get()
                || !self.milestones.iter().any(|probe| boots(&probe.purpose)))
    }

    /// Optimises the plants at `places` where possible. On failure a site keeps its plant.
    pub(super) fn optimise_all(&self, paused: &dyn Paused, places: &[Gva]) {
        if !self.is_optimising() {
            return;
        }
        let kernel = self.known_kernel_space();
        let table = self.table.load_full();
        for plant in places.iter().filter_map(|at| table.at(*at)) {
            self.report_hindrance(plant);
            if self.may_optimise(plant)
                && let Some(kernel) = &kernel
                && let Err(error) = self.optimise(paused, plant, kernel)
            {
                self.note(None, format!("{} is not optimised: {error}", plant.at));
            }
        }
    }

    /// The kernel's page tables, if known without asking a vCPU.
    fn known_kernel_space(&self) -> Option<KernelSpace> {
        self.detour
            .kernel()
            .or_else(|| self.optimised.early.space())
            .or_else(|| {
                let paging = self.modules.paging()?;
                let located = self.located.get()?;
                Some(self.kernel_space_with(paging, located, Tables::Settled))
            })
    }

    /// The page tables by which a vCPU with this state, which stands at `rip`, can reach a detour.
    pub(super) fn space_for_detour(&self, state: &SystemState, rip: Gva) -> Option<KernelSpace> {
        match self.optimised.early.space() {
            Some(space) => {
                let linked = self.located.get()?.linked(rip);
                (!self.kernel.is_entry(linked)).then_some(space)
            }
            None => self.kernel_space(state, rip),
        }
    }

    /// Replaces `plant` by a jump or an `int3`, if safe.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(super) fn optimise(
        &self,
        paused: &dyn Paused,
        plant: &Plant,
        kernel: &KernelSpace,
    ) -> Result<(), GuestError> {
        self.tend_region(paused);
        // The plant may have changed since the look-up.
        let table = self.table.load();
        let current = table.at(plant.at).filter(|now| now.spot == plant.spot);
        let Some(plant) = current.filter(|plant| self.hindrance(plant).is_none()) else {
            return Ok(());
        };
        if plant.optimising.jump().is_some() {
            return Ok(());
        }
        plant.optimising.decide();
        let (served, uses) = self.served(plant);
        let (jumped, gpa) = match self.verdict(paused, plant, &uses, kernel) {
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
            .make(paused, self.memory.as_ref(), kernel, &jumped, &uses);
        let jump = made.and_then(|made| {
            let jump = match jumped.lead() {
                Lead::Jump => made.jump_from(jumped.at())?,
                Lead::Int3 => {
                    self.lead_by_int3(paused, jumped.at(), made.entry)?;
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
        self.take_out_records();
        for (served, part) in served.into_iter().zip(made.parts) {
            self.serve(served, part)?;
        }
        if let Err(error) = self.planter.set_jump(paused, gpa, Some(jump)) {
            self.end_lead(plant.at);
            return Err(error.into());
        }
        set_unoptimised(plant, None);
        plant.optimising.set_jump(Some(gpa));
        let led = Led {
            plant: plant.at,
            lead: jumped.lead(),
        };
        self.optimised.jumps().insert(gpa, led);
        Ok(())
    }

    /// Removes the jump or `int3` that replaces `plant`, if any. The probe still counts threads inside the detour.
    ///
    /// # Errors
    ///
    /// If memory cannot be written; then the jump stays.
    pub(super) fn unoptimise(&self, paused: &dyn Paused, plant: &Plant) -> Result<(), GuestError> {
        if let Some(gpa) = plant.optimising.jump() {
            self.planter.set_jump(paused, gpa, None)?;
            self.end_lead(plant.at);
            self.optimised.jumps().remove(&gpa);
            plant.optimising.set_jump(None);
            for (probe, _) in &plant.probes {
                // A removed probe stays optimised to its end.
                let is_armed = self.armed.load(Ordering::Acquire)
                    && probe.is_enabled()
                    && probe.state() == ProbeState::Armed;
                probe.set_optimised(!is_armed);
            }
        }
        plant.optimising.reopen();
        Ok(())
    }

    /// The kind of redirect at `gpa`, if any.
    fn leads(&self, gpa: Gpa) -> Option<Lead> {
        self.optimised.jumps().get(&gpa).map(|led| led.lead)
    }

    /// The address of the plant whose redirect is at `gpa`.
    fn plant_led_from(&self, gpa: Gpa) -> Option<Gva> {
        self.optimised.jumps().get(&gpa).map(|led| led.plant)
    }

    fn end_lead(&self, site: Gva) {
        if let Err(error) = self.detour.end_lead(site) {
            self.note(None, format!("an int3 at {site} is still led on: {error}"));
        }
    }

    /// Prepares new plants at these locations. Jumps of other plants over them are removed first. So are all `int3`s, if a
    /// location is in the part of the kernel's handler that each `int3` executes.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(super) fn make_room_for_plants(
        &self,
        paused: &dyn Paused,
        spots: impl Iterator<Item = Spot>,
    ) -> Result<(), GuestError> {
        let table = self.table.load_full();
        let spots: Vec<_> = spots.collect();
        if spots.iter().any(|spot| self.is_before_switch(spot.gpa)) {
            self.remove_int3s(paused)?;
        }
        for spot in spots {
            for jump in self.planter.jumps(spot.gpa, 1) {
                let at = self.plant_led_from(jump);
                if let Some(plant) = at.and_then(|at| table.at(at))
                    && plant.spot != spot
                {
                    self.unoptimise(paused, plant)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the jumps that the guest is about to change by writing `data` at `gpa`.
    pub(super) fn make_room_for_write(
        &self,
        paused: &dyn Paused,
        gpa: Gpa,
        data: &[u8],
    ) -> Result<(), GuestError> {
        if self.patches_int3_handler(gpa, data.len()) {
            self.remove_int3s(paused)?;
        }
        if !self.planter.overwrites_jump(gpa, data) {
            return Ok(());
        }
        self.remove_jumps(paused, self.planter.jumps(gpa, data.len()))
    }

    /// Removes the jumps over instructions that handlers have written to.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(super) fn remove_rewritten_jumps(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        if !self.planter.has_rewritten_jumps() {
            return Ok(());
        }
        self.remove_jumps(paused, self.planter.take_rewritten_jumps())
    }

    fn remove_jumps(
        &self,
        paused: &dyn Paused,
        jumps: impl IntoIterator<Item = Gpa>,
    ) -> Result<(), GuestError> {
        let table = self.table.load_full();
        for jump in jumps {
            let at = self.plant_led_from(jump);
            if let Some(plant) = at.and_then(|at| table.at(at)) {
                self.unoptimise(paused, plant)?;
            }
        }
        Ok(())
    }

    /// Reopens the verdicts on all plants without a redirect.
    fn reopen_all(&self) {
        let table = self.table.load();
        table
            .plants()
            .filter(|plant| plant.optimising.jump().is_none())
            .for_each(|plant| plant.optimising.reopen());
    }

    /// Reopens the verdicts on plants near a guest write of `len` bytes at `gpa`.
    pub(super) fn reopen(&self, table: &Table, gpa: Gpa, len: usize) {
        if !self.kernel_is_settled() && !self.optimised.early.is_on() {
            return;
        }
        let end = gpa.0.saturating_add(len as u64).saturating_add(JUMP_BYTES);
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
}
