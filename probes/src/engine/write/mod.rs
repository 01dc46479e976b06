//! Guest writes to read-only pages.

pub(crate) mod stand_in;

use std::sync::Arc;

use address::Gpa;
use detour::Detour;
use text::{GuestError, Paused, Written};

use crate::engine::optimise::Optimiser;
use crate::engine::optimise::early::Early;
use crate::engine::plants::Plants;
use crate::engine::reporter::Reporter;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::engine::write::stand_in::StandIns;

/// Merges guest writes with plants.
#[derive(Debug)]
pub(crate) struct Writes {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) early: Arc<Early>,
    pub(crate) optimiser: Arc<Optimiser>,
    pub(crate) stand_ins: Arc<StandIns>,
}

impl Writes {
    /// Whether the other vCPUs must be paused before the guest writes `data` at `gpa`: a jump, an `int3` or a plant has to go.
    pub(crate) fn must_pause_for_write(&self, gpa: Gpa, data: &[u8]) -> bool {
        self.running.planter.pages().overwrites_jump(gpa, data)
            || self.running.wants_stand_in(gpa, data)
            || self.early.patches_int3_handler(gpa, data.len())
    }

    /// Handles a guest write to a read-only page.
    pub(crate) fn on_guest_write(&self, gpa: Gpa, data: &[u8]) -> Result<Written, GuestError> {
        let written = self.running.planter.guest_write(gpa, data)?;
        if written == Written::Merged {
            let table = self.plants.table.load();
            for plant in table.touched(gpa, data.len()) {
                plant.refresh(&self.running.planter);
            }
            self.optimiser.reopen(&table, gpa, data.len());
            let ring = self.detour.ring();
            self.return_sites
                .landings
                .guest_has_written(ring.as_deref(), gpa, data.len())?;
        }
        Ok(written)
    }

    /// Handles a guest write for which the other vCPUs are paused: removes what has to go, and writes.
    pub(crate) fn on_paused_guest_write(
        &self,
        paused: &dyn Paused,
        gpa: Gpa,
        data: &[u8],
    ) -> Result<Written, GuestError> {
        self.optimiser.make_room_for_write(paused, gpa, data)?;
        if self.running.wants_stand_in(gpa, data) {
            self.stand_ins.stand_in(paused, gpa, data.len())?;
        }
        self.on_guest_write(gpa, data)
    }

    /// Whether the guest writes to a copy. The write is dropped. A note reports the first write, the tenth, the hundredth and so
    /// on.
    pub(crate) fn is_detour_write(&self, gpa: address::Gpa) -> bool {
        let Some(count) = self.detour.count_write(gpa) else {
            return false;
        };
        if 10u64.pow(count.ilog10()) == count {
            self.reporter.note(
                None,
                format!("the guest writes to the detour region, at {gpa} (write {count}); dropped"),
            );
        }
        true
    }
}
