//! The ways to arm a probe.

use introspect::Gva;
use text::Spot;

use super::Engine;
use super::jumps::ELSEWHERE;
use super::located::Located;
use crate::resolve::{Place, Via, When};

/// The reason why a late probe cannot be on the pushes of the #BP handler.
const REDIRECTED: &str = "hyprobe redirects the kernel's #BP handler here, for probes whose plant is an int3: ask for this probe before the guest starts, or turn optimisation off";

/// The way to arm a probe now.
pub(super) enum Arming {
    Plant {
        at: Gva,
        spot: Spot,
        len: usize,
    },
    Debug {
        at: Gva,
        spot: Spot,
    },
    /// The probe cannot be armed yet.
    Later(&'static str),
    Refused(String),
}

impl Engine {
    /// The way to arm `place` now.
    pub(super) fn arming(&self, place: &Place, located: Located) -> Arming {
        if place.when == When::BootPatched && !self.boot_patched.get() {
            return Arming::Later("the kernel rewrites this instruction while it boots");
        }
        let linked = match place.via {
            Via::Plant { at, .. } => at,
            Via::DebugRegister => place.ip,
        };
        let Some(spot) = self.spot_of(place, linked, located) else {
            return Arming::Refused(match place.module {
                Some(_) => format!("{linked} is not in memory"),
                None => format!("{linked} is not in the kernel's image"),
            });
        };
        let at = located.running_at(place, linked);
        match place.via {
            Via::DebugRegister if self.abilities.debug_execute => Arming::Debug { at, spot },
            Via::DebugRegister => Arming::Refused(
                "the kernel patches this instruction itself at run time, and debug registers do not work on this host".to_owned(),
            ),
            // The instruction was checked when planted; by now the guest's own kprobes may have changed the bytes.
            Via::Plant { len, .. } if self.has_plant(at, spot) => Arming::Plant { at, spot, len },
            Via::Plant { .. } if self.is_redirected(spot.gpa) => {
                Arming::Refused(REDIRECTED.to_owned())
            }
            Via::Plant { .. }
                if place.module.is_none()
                    && self.boot_patched.get()
                    && self.is_jumped_over(linked, spot.gpa) =>
            {
                Arming::Refused(ELSEWHERE.to_owned())
            }
            Via::Plant { len, .. } if place.when == When::TextPresent => Arming::Plant { at, spot, len },
            Via::Plant { .. } => match self.boundary_in_memory(linked, spot.gpa) {
                Some(len) => Arming::Plant { at, spot, len },
                None => Arming::Refused(
                    "the kernel has rewritten this code while it booted, and no instruction begins there now".to_owned(),
                ),
            },
        }
    }

    fn has_plant(&self, at: Gva, spot: Spot) -> bool {
        let table = self.table.load();
        table.at(at).is_some_and(|plant| plant.spot == spot)
    }
}
