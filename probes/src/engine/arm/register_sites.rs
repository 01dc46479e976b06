//! The level `registers`: each instruction probed by the user has a debug register.
//!
//! A site has its register from the first time that a probe is armed there until its last probe is removed: also while the probe is
//! disabled, or its module is not loaded. No probe moves between a register and a plant, so a vCPU that has hit the one, and waits for a
//! pause, does not hit the other. While the user has four sites, a probe of hyprobe's own at an event of the boot is a hidden plant.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::Gva;
use events::ProbeState;

use crate::registry::{Probe, Purpose};
use crate::resolve::{Place, Via};

/// The number of debug registers.
const REGISTERS: usize = 4;

pub(crate) const TAKEN: &str =
    "all four debug registers are taken: remove a probe, or run the guest at the level `reads`";
const RETURNS: &str = "at the level `registers`, no debug register is left for the addresses to which calls return: run the guest at the level `reads`, or probe the function's `ret`";
const NO_DEBUG_REGISTERS: &str = "debug registers do not work on this host, so the level `registers` has no probes at instructions: run the guest at the level `reads`";

/// The probes whose sites have a debug register. Changed with the vCPUs paused.
#[derive(Debug, Default)]
pub(crate) struct RegisterHolders(Mutex<Vec<(Arc<Probe>, Site)>>);

impl RegisterHolders {
    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<Probe>, Site)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The holders after a change that has succeeded.
    pub(crate) fn replace(&self, sites: RegisterSites) {
        *self.lock() = sites.holders;
    }

    /// The sites of the holders in `list`, which keep their registers.
    pub(crate) fn sites(&self, list: &[Arc<Probe>], work: bool) -> RegisterSites {
        let mut found = RegisterSites {
            holders: Vec::new(),
            sites: Vec::new(),
            are_wanted: false,
            work,
        };
        let is_removed = |probe| !list.iter().any(|it| Arc::ptr_eq(it, probe));
        for (holder, site) in self.lock().iter() {
            if is_over(holder) || is_removed(holder) {
                continue;
            }
            let site = match holder.place() {
                Some(place) => Site::of(&place),
                None => site.unloaded(),
            };
            found.hold(holder, site);
        }
        found
    }
}

/// An instruction that has a debug register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The address of the module's `struct module`.
    module: Option<Gva>,
    at: Gva,
    /// Whether the module is there. The addresses may be another module's after the module has gone.
    is_loaded: bool,
}

impl Site {
    pub(crate) fn of(place: &Place) -> Self {
        Self {
            module: place.module(),
            at: match place.via {
                Via::Plant { at, .. } => at,
                Via::DebugRegister | Via::Data { .. } => place.ip,
            },
            is_loaded: true,
        }
    }

    fn unloaded(self) -> Self {
        Self {
            is_loaded: false,
            ..self
        }
    }
}

/// The sites with a debug register, while a change is put together.
#[derive(Debug)]
pub(crate) struct RegisterSites {
    holders: Vec<(Arc<Probe>, Site)>,
    sites: Vec<Site>,
    /// Whether the user's probes are to have all registers.
    are_wanted: bool,
    /// Whether debug registers stop the guest's kernel.
    work: bool,
}

impl RegisterSites {
    /// Whether no register is left for hyprobe's own probes.
    pub(crate) fn are_wanted(&self) -> bool {
        self.are_wanted
    }

    /// Notes whether the sites of the user's probes would take all registers.
    pub(crate) fn want(&mut self, wanted: impl Iterator<Item = Site>) {
        let mut all = self.sites.clone();
        for site in wanted {
            if all.len() >= REGISTERS {
                break;
            }
            if !all.contains(&site) {
                all.push(site);
            }
        }
        self.are_wanted = all.len() >= REGISTERS;
    }

    /// Gives the site at `place` a register, or says why not.
    pub(crate) fn take(&mut self, probe: &Arc<Probe>, place: &Place) -> Result<(), &'static str> {
        if !self.work {
            return Err(NO_DEBUG_REGISTERS);
        }
        if matches!(probe.purpose, Purpose::Return(_)) {
            return Err(RETURNS);
        }
        let site = Site::of(place);
        if !self.sites.contains(&site) && self.sites.len() >= REGISTERS {
            return Err(TAKEN);
        }
        self.hold(probe, site);
        Ok(())
    }

    fn hold(&mut self, probe: &Arc<Probe>, site: Site) {
        if !self.sites.contains(&site) {
            self.sites.push(site);
        }
        self.holders.retain(|(other, _)| !Arc::ptr_eq(other, probe));
        self.holders.push((Arc::clone(probe), site));
    }
}

/// Whether the probe is not armed again.
pub(crate) fn is_over(probe: &Probe) -> bool {
    match probe.status.state() {
        ProbeState::Refused => true,
        // A module may be loaded again.
        ProbeState::Gone => probe.in_module.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use events::ProbeId;
    use manifest::ProbeSpec;

    use super::*;
    use crate::arguments::ArgumentSource;
    use crate::resolve::{MemoryOwner, PlantTime};

    fn place(at: u64) -> Place {
        Place {
            ip: Gva(at),
            symbol: "f+0x0".into(),
            via: Via::Plant {
                at: Gva(at),
                len: 1,
            },
            when: PlantTime::TextPresent,
            init: false,
            owner: MemoryOwner::Module(Gva(0x7000)),
            arguments: ArgumentSource::Registers,
        }
    }

    fn in_module() -> Arc<Probe> {
        let spec = "kprobe:m:f".parse::<ProbeSpec>().expect("a probe");
        let probe = Probe::new(ProbeId(1), "kprobe:m:f".into(), Purpose::Count, None, true);
        Arc::new(probe.awaiting(spec))
    }

    #[test]
    fn probes_that_share_a_site_keep_one_register_while_their_module_is_not_loaded() {
        let holders = RegisterHolders::default();
        let list = [in_module(), in_module()];
        let mut sites = holders.sites(&list, true);
        for probe in &list {
            sites.take(probe, &place(0x1000)).expect("a register");
        }
        holders.replace(sites);
        for probe in &list {
            probe.status.set_state(ProbeState::Gone, None);
        }
        let mut sites = holders.sites(&list, true);
        assert_eq!(sites.sites.len(), 1);
        // Another module at the same address.
        let other = in_module();
        sites.take(&other, &place(0x1000)).expect("a register");
        assert_eq!(sites.sites.len(), 2);
        // A removed probe keeps none.
        assert_eq!(holders.sites(&list[..0], true).sites.len(), 0);
    }

    #[test]
    fn fifth_site_has_no_register_and_the_user_s_four_are_wanted() {
        let holders = RegisterHolders::default();
        let mut sites = holders.sites(&[], true);
        sites.want([1, 2, 2, 3].map(|at| Site::of(&place(at))).into_iter());
        assert!(!sites.are_wanted());
        sites.want([1, 2, 3, 4, 5].map(|at| Site::of(&place(at))).into_iter());
        assert!(sites.are_wanted());
        let probe = in_module();
        for at in 1..=4 {
            assert_eq!(sites.take(&probe, &place(at)), Ok(()));
        }
        assert_eq!(sites.take(&probe, &place(5)), Err(TAKEN));
        assert_eq!(sites.take(&probe, &place(4)), Ok(()));
        let mut sites = holders.sites(&[], false);
        assert_eq!(sites.take(&probe, &place(1)), Err(NO_DEBUG_REGISTERS));
    }
}
