//! The ways to arm a probe.

use address::Gva;
use manifest::WatchedAccess;

use crate::engine::arm::Armer;
use crate::engine::arm::jumps::ELSEWHERE;
use crate::engine::running::arming::Arming;
use crate::engine::running::located::Located;
use crate::engine::watch::table::WatchedBytes;
use crate::resolve::{MemoryOwner, Place, PlantTime, Via};

/// The reason why a late probe cannot be on the pushes of the #BP handler.
const REDIRECTED: &str = "hyprobe redirects the kernel's #BP handler here, for probes whose plant is an int3: ask for this probe before the guest starts, or turn optimisation off";

const NO_DEBUG_REGISTERS: &str = "the kernel patches this instruction itself at run time, and debug registers do not work on this host";

/// The reason why a plant and a watchpoint cannot share a page: the slot of the page is either read-only or protected. KVM emulates writes to a
/// read-only page, and no debug register fires at them.
const PROTECTED: &str = "its page has watched data: remove the watchpoints of the page first";
const PLANTED: &str = "its page has probed code: remove the probes of the page first";

impl Armer {
    /// The way to arm `place` now.
    pub(crate) fn arming(&self, place: &Place, located: Located) -> Arming {
        if place.when == PlantTime::BootPatched && !self.running.boot_patched.get() {
            return Arming::Later(match place.owner {
                MemoryOwner::Processors => "the kernel has not made the processors' copies yet",
                MemoryOwner::Nobody => "the kernel has not mapped all memory yet",
                _ => "the kernel rewrites this instruction while it boots",
            });
        }
        let (linked, len) = match place.via {
            Via::Data { len, access } => {
                return self.arming_of_data(place, len, access, located);
            }
            Via::Plant { at, len } => (at, Some(len)),
            Via::DebugRegister => (place.ip, None),
        };
        let Some(spot) = self.running.spot_of(place, linked, located) else {
            return not_there(place, linked);
        };
        let at = located.running_at(place, linked);
        if self.watches.has_data_on(spot, len.unwrap_or(1)) {
            return Arming::Refused(PROTECTED.to_owned());
        }
        let Some(len) = len else {
            return match self.running.abilities.debug_execute {
                // The emulator executes what the kernel has patched.
                _ if self.running.hides_plants() => Arming::Plant { at, spot, len: 1 },
                true => Arming::Debug { at, spot },
                false => Arming::Refused(NO_DEBUG_REGISTERS.to_owned()),
            };
        };
        let plant = Arming::Plant { at, spot, len };
        // The instruction was checked when planted; by now the guest's own kprobes may have changed the bytes.
        if self.plants.has_plant(at, spot) {
            return plant;
        }
        if self.int3.is_redirected(spot.gpa) {
            return Arming::Refused(REDIRECTED.to_owned());
        }
        if place.module().is_none()
            && self.running.boot_patched.get()
            && self.running.is_jumped_over(linked, spot.gpa)
        {
            return Arming::Refused(ELSEWHERE.to_owned());
        }
        if place.when == PlantTime::TextPresent {
            return plant;
        }
        match self.running.boundary_in_memory(linked, spot.gpa) {
            Some(len) => Arming::Plant { at, spot, len },
            None => Arming::Refused(
                "the kernel has rewritten this code while it booted, and no instruction begins there now".to_owned(),
            ),
        }
    }

    /// The way to arm a watchpoint of `len` bytes at `place` now.
    fn arming_of_data(
        &self,
        place: &Place,
        len: usize,
        access: WatchedAccess,
        located: Located,
    ) -> Arming {
        let pieces = match self.running.watched_bytes(place, len, access, located) {
            Ok(pieces) => pieces,
            Err(why) => return Arming::Refused(why.to_string()),
        };
        let mut pages = pieces.iter().flat_map(WatchedBytes::pages);
        // A debug register does not fire where the emulator executes the instructions of a protected page.
        let has_plants = |page| {
            self.running.planter.pages().keeps(page)
                || self.plants.hides(page)
                || self.plants.has_register_on(page)
        };
        match pages.any(has_plants) {
            true => Arming::Refused(PLANTED.to_owned()),
            false => Arming::Watch(pieces),
        }
    }
}

fn not_there(place: &Place, linked: Gva) -> Arming {
    Arming::Refused(match place.module() {
        Some(_) => format!("{linked} is not in memory"),
        None => format!("{linked} is not in the kernel's image"),
    })
}
