//! The debug registers of a change, at the level `registers`.

use crate::engine::arm::Armer;
use crate::engine::arm::edits::Change;
use crate::engine::arm::register_sites::{RegisterSites, Site, is_over};
use crate::registry::{Probe, Purpose};
use crate::resolve::{Place, Via};

impl Armer {
    /// The sites that have a register before `change`, and keep it.
    pub(crate) fn register_sites(&self, change: &Change<'_>) -> RegisterSites {
        let works = self.running.abilities.debug_execute;
        let mut sites = self.registers.sites(&self.probes.list.load(), works);
        let placed = change.probes.iter().filter(|probe| {
            // Return probes are refused.
            !is_over(probe) && !matches!(probe.purpose, Purpose::Return(_))
        });
        sites.want(placed.filter_map(|probe| {
            let place = probe.place()?;
            self.belongs_in_register(probe, &place)
                .then(|| Site::of(&place))
        }));
        sites
    }

    /// Whether the user's probe at `place` has a debug register in place of a plant. An instruction that hyprobe probes itself has a
    /// hidden plant, also for the user's probes.
    pub(crate) fn belongs_in_register(&self, probe: &Probe, place: &Place) -> bool {
        if !self.running.probes_in_registers() {
            return false;
        }
        let is_own = || {
            let mut own = self.plants.kernel_event_probes.iter();
            own.any(|own| {
                let own = own.place();
                own.is_some_and(|own| Site::of(&own) == Site::of(place))
            })
        };
        match (&probe.purpose, place.via) {
            (Purpose::KernelEvent(_), _) | (_, Via::Data { .. }) => false,
            // Refused at each site.
            (Purpose::Return(_), _) => true,
            (_, Via::Plant { .. } | Via::DebugRegister) => !is_own(),
        }
    }
}
