//! The optimised tier: a jump stands for a plant, to a detour that counts or records and runs on. No exit at all.
//!
//! ```text
//!  plant            b8 01 00 00 00   mov eax, 1         behind an ftrace call   0f 1f 44 00 00   nop
//!  with its byte    ee 01 00 00 00                                              0f 1f 44 00 00
//!  optimised        e9 .. .. .. ..   jmp detour         plant ▶                 ee
//!                                                       optimised               e9 .. .. .. ..   jmp detour
//!                                                       plant, as before ▶      ee
//! ```
//!
//! A jump lies over one instruction that has room for it, so nobody can be in the middle of what it replaces. Where none
//! has, an `int3` on its first byte leads to the detour in the same way (`int3`). The jump is put
//! there, and taken away, with the vCPUs paused; whoever is in the detour then runs on in it, and has been counted or
//! will be. Everything that wants to know more of a hit than that it was one makes the jump go first.
//! `docs/optimised.md` has the reasons.

mod int3;
mod sharing;
mod vcpus;
mod verdict;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use introspect::{Gpa, Gva};

use super::Engine;
use super::arm::ArmError;
use crate::ProbeState;
use crate::detour::{DetourError, KernelSpace, Lead};
use crate::guest::{GuestError, Paused};
use crate::hit::{Plant, Table};
use crate::plant::{Jump, Spot};
use crate::registry::{Milestone, Purpose};
use int3::Int3Way;
use sharing::set_unoptimised;
use verdict::NotOptimised;

/// Bytes of a jump.
const JUMP_BYTES: u64 = 5;

/// What is optimised.
#[derive(Debug)]
pub(super) struct Optimised {
    /// The knob.
    wanted: AtomicBool,
    /// Where jumps are, and what stands there for which plant. Changed with the vCPUs paused.
    jumps: Mutex<BTreeMap<Gpa, Led>>,
    int3: Int3Way,
}

impl Default for Optimised {
    fn default() -> Self {
        Self {
            wanted: AtomicBool::new(false),
            jumps: Mutex::default(),
            int3: Int3Way::default(),
        }
    }
}

/// What stands for a plant.
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
    /// The knob of optimisation, off until somebody turns it on, as a session does that is asked to: `false` makes every
    /// hit exit, `true` lets jumps stand for plants again, where they can.
    ///
    /// # Errors
    ///
    /// When bytes cannot be changed; the jumps that are left count on.
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

    /// Finds out what [`set_optimising`](Self::set_optimising) needs to know: in a second or less, while the guest runs.
    pub fn prepare_optimising(&self) {
        let _ = self.kernel.survey();
        self.records.measure_clock();
    }

    /// The knob.
    pub fn is_optimising(&self) -> bool {
        self.optimised.wanted.load(Ordering::Acquire)
    }

    /// Whether a jump may stand for `plant`, as far as is known: it is worth a pause to find out. Called at every hit.
    pub(super) fn may_optimise(&self, plant: &Plant) -> bool {
        plant.optimising.is_open()
            && self.is_optimising()
            && self.hindrance(plant).is_none()
            && self.kernel_is_settled()
    }

    /// Whether the kernel's page tables and its text stay as they are, but for what it patches now and then.
    fn kernel_is_settled(&self) -> bool {
        let boots =
            |purpose: &Purpose| matches!(purpose, Purpose::Milestone(Milestone::BootPatched));
        self.located.get().is_some()
            && (self.boot_patched.get()
                || !self.milestones.iter().any(|probe| boots(&probe.purpose)))
    }

    /// Optimises what can be of the plants at `places`. What fails keeps its plant.
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

    /// The kernel's page tables, where no vCPU need be asked for them.
    fn known_kernel_space(&self) -> Option<KernelSpace> {
        self.detour.kernel().or_else(|| {
            let paging = self.modules.paging()?;
            let located = self.located.get()?;
            Some(self.kernel_space_with(paging, located))
        })
    }

    /// Puts a jump in the place of `plant`, if that is safe.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(super) fn optimise(
        &self,
        paused: &dyn Paused,
        plant: &Plant,
        kernel: &KernelSpace,
    ) -> Result<(), GuestError> {
        self.tend_region(paused);
        // What is planted may have changed since it was looked up.
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
        // The records that are there may be another probe's, which had the detour before.
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

    /// Takes the jump away that stands for `plant`, if one does. Its probe goes on counting whoever is in the detour.
    ///
    /// # Errors
    ///
    /// When memory cannot be written; then the jump stays.
    pub(super) fn unoptimise(&self, paused: &dyn Paused, plant: &Plant) -> Result<(), GuestError> {
        if let Some(gpa) = plant.optimising.jump() {
            self.planter.set_jump(paused, gpa, None)?;
            self.end_lead(plant.at);
            self.optimised.jumps().remove(&gpa);
            plant.optimising.set_jump(None);
            for (probe, _) in &plant.probes {
                // One that goes was optimised to its end.
                let is_armed = self.armed.load(Ordering::Acquire)
                    && probe.is_enabled()
                    && probe.state() == ProbeState::Armed;
                probe.set_optimised(!is_armed);
            }
        }
        plant.optimising.reopen();
        Ok(())
    }

    /// What stands at `gpa` for a plant.
    fn leads(&self, gpa: Gpa) -> Option<Lead> {
        self.optimised.jumps().get(&gpa).map(|led| led.lead)
    }

    /// The address of the plant for which something stands at `gpa`.
    fn plant_led_from(&self, gpa: Gpa) -> Option<Gva> {
        self.optimised.jumps().get(&gpa).map(|led| led.plant)
    }

    fn end_lead(&self, site: Gva) {
        if let Err(error) = self.detour.end_lead(site) {
            self.note(None, format!("an int3 at {site} is still led on: {error}"));
        }
    }

    /// Somebody is about to be planted at these places: jumps that lie over one of them, and stand for another plant,
    /// go first.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(super) fn make_room_for_plants(
        &self,
        paused: &dyn Paused,
        spots: impl Iterator<Item = Spot>,
    ) -> Result<(), GuestError> {
        let table = self.table.load_full();
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

    /// The guest is about to write `data` at `gpa`: jumps that it would change go first.
    pub(super) fn make_room_for_write(
        &self,
        paused: &dyn Paused,
        gpa: Gpa,
        data: &[u8],
    ) -> Result<(), GuestError> {
        if !self.planter.overwrites_jump(gpa, data) {
            return Ok(());
        }
        self.remove_jumps(paused, self.planter.jumps(gpa, data.len()))
    }

    /// Handlers have written to instructions that jumps lie over: these go.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
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

    /// The guest has written `len` bytes at `gpa`: what is said of the jumps there may be so no more.
    pub(super) fn reopen(&self, table: &Table, gpa: Gpa, len: usize) {
        if !self.kernel_is_settled() {
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
