//! The ways to arm a probe.

use crate::engine::arm::Armer;
use crate::engine::arm::jumps::ELSEWHERE;
use crate::engine::running::arming::Arming;
use crate::engine::running::located::Located;
use crate::engine::watch::table::WatchedBytes;
use crate::resolve::{Place, PlantTime, Via};

/// The reason why a late probe cannot be on the pushes of the #BP handler.
const REDIRECTED: &str = "hyprobe redirects the kernel's #BP handler here, for probes whose plant is an int3: ask for this probe before the guest starts, or turn optimisation off";

/// The reason why a plant and a watchpoint cannot share a page: the slot of the page is either read-only or protected.
const PROTECTED: &str = "its page has watched data: remove the watchpoints of the page first";
const PLANTED: &str = "its page has probed code: remove the probes of the page first";

impl Armer {
    /// The way to arm `place` now.
    pub(crate) fn arming(&self, place: &Place, located: Located) -> Arming {
        if place.when == PlantTime::BootPatched && !self.running.boot_patched.get() {
            return Arming::Later("the kernel rewrites this instruction while it boots");
        }
        let linked = match place.via {
            Via::Plant { at, .. } => at,
            Via::DebugRegister | Via::ProtectedPage { .. } => place.ip,
        };
        let Some(spot) = self.running.spot_of(place, linked, located) else {
            return Arming::Refused(match place.module {
                Some(_) => format!("{linked} is not in memory"),
                None => format!("{linked} is not in the kernel's image"),
            });
        };
        let at = located.running_at(place, linked);
        match place.via {
            Via::ProtectedPage { len, access } => {
                let bytes = WatchedBytes {
                    at,
                    gpa: spot.gpa,
                    len,
                    access,
                };
                let mut pages = bytes.pages();
                match pages.any(|page| self.running.planter.pages().keeps(page)) {
                    true => Arming::Refused(PLANTED.to_owned()),
                    false => Arming::Watch(bytes),
                }
            }
            Via::DebugRegister if self.running.abilities.debug_execute => Arming::Debug { at, spot },
            Via::DebugRegister => Arming::Refused(
                "the kernel patches this instruction itself at run time, and debug registers do not work on this host".to_owned(),
            ),
            Via::Plant { len, .. } if self.watches.protects(spot, len) => {
                Arming::Refused(PROTECTED.to_owned())
            }
            // The instruction was checked when planted; by now the guest's own kprobes may have changed the bytes.
            Via::Plant { len, .. } if self.plants.has_plant(at, spot) => Arming::Plant { at, spot, len },
            Via::Plant { .. } if self.int3.is_redirected(spot.gpa) => {
                Arming::Refused(REDIRECTED.to_owned())
            }
            Via::Plant { .. }
                if place.module.is_none()
                    && self.running.boot_patched.get()
                    && self.running.is_jumped_over(linked, spot.gpa) =>
            {
                Arming::Refused(ELSEWHERE.to_owned())
            }
            Via::Plant { len, .. } if place.when == PlantTime::TextPresent => Arming::Plant { at, spot, len },
            Via::Plant { .. } => match self.running.boundary_in_memory(linked, spot.gpa) {
                Some(len) => Arming::Plant { at, spot, len },
                None => Arming::Refused(
                    "the kernel has rewritten this code while it booted, and no instruction begins there now".to_owned(),
                ),
            },
        }
    }
}
