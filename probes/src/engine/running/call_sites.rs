//! The instructions that calls return to.

use address::{Gpa, Gva};
use introspect::insn::Decoded;
use introspect::{PatchKind, PatchSite, PatchTime};
use text::Spot;

use crate::engine::running::Running;
use crate::engine::running::arming::Arming;
use crate::engine::running::located::Located;
use crate::plant::{Plant, own_instruction};

/// The instruction at a possible return address, with its location, if any.
pub(crate) enum CallSite {
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

impl Running {
    /// Whether a plant is possible at the return address `site`.
    pub(crate) fn can_return_to(&self, site: Gva) -> bool {
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
    pub(crate) fn call_site(&self, at: Gva) -> CallSite {
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

    pub(crate) fn arming_return_site(&self, site: Gva, located: Located) -> Arming {
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
        // The emulator executes what the kernel has patched, and the kernel finds its own bytes.
        if !self.hides_plants() && (patched == Some(PatchTime::Runtime) || waits) {
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

    pub(crate) fn patched_at_run_time(
        &self,
        plant: &Plant,
        planted: &Decoded,
    ) -> Option<PatchKind> {
        let len = planted.len() as u64;
        let site = match self.modules.holding(plant.at) {
            Some(module) => module.patched(plant.at, len),
            None => {
                let linked = self.located.get()?.linked(plant.at);
                self.kernel.sites().overlapping(linked, len)
            }
        };
        let kind = site?.kind;
        (kind.when() == PatchTime::Runtime).then_some(kind)
    }
}
