//! Which state a probe gets in a change, and where its site is edited.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use events::ProbeState;

use crate::engine::arm::Armer;
use crate::engine::arm::edits::Edits;
use crate::engine::arm::new_state::NewState;
use crate::engine::arm::register_sites::{self, RegisterSites};
use crate::engine::interest::Interest;
use crate::engine::running::arming::Arming;
use crate::engine::running::located::Located;
use crate::registry::{KernelEvent, Probe, Purpose, Reader};
use crate::resolve::TaskMember;

impl Armer {
    /// Computes the next state of a probe, and adds the edit of its site to `edits`.
    pub(super) fn becomes(
        &self,
        probe: &Arc<Probe>,
        located: Located,
        interest: Interest,
        registers: &mut RegisterSites,
        edits: &mut Edits<'_>,
    ) -> NewState {
        let gone = matches!(probe.status.state(), ProbeState::Gone | ProbeState::Refused);
        let idle = match probe.purpose {
            Purpose::KernelEvent(event)
                if self.running.hides_plants() && self.is_needless(event) =>
            {
                true
            }
            Purpose::KernelEvent(KernelEvent::CpuOnline | KernelEvent::CpuOffline) => {
                !self.running.has_int3()
            }
            Purpose::KernelEvent(KernelEvent::TaskEnded | KernelEvent::TaskLeft) => !interest.calls,
            Purpose::KernelEvent(KernelEvent::TaskStarted | KernelEvent::TaskFreed) => {
                !interest.tasks
            }
            Purpose::KernelEvent(KernelEvent::Module(_)) => !interest.modules,
            Purpose::KernelEvent(KernelEvent::File(_)) => !interest.files,
            // Also without other probes: the plants of the kernel event probes are not to be read either.
            Purpose::KernelEvent(KernelEvent::Reader(
                Reader::Copy | Reader::CheckProbe | Reader::CheckOptimised,
            )) => !self.running.boot_patched.get(),
            Purpose::KernelEvent(KernelEvent::Reader(_)) => !interest.plants,
            _ => false,
        };
        let is_armed =
            self.probes.armed.load(Ordering::Acquire) || self.stays_while_disarmed(probe);
        let is_off = !is_armed || !probe.is_enabled();
        let Some(place) = probe.place().filter(|_| !gone && !idle) else {
            return match &probe.in_task {
                Some(member) if probe.place().is_none() => without_task(probe, member, is_off),
                _ => NewState::AsItIs,
            };
        };
        if place.init && place.module().is_none() && self.running.init_freed.get() {
            return NewState::Gone;
        }
        if is_off {
            return NewState::Disabled;
        }
        let ip = located.running_at(&place, place.ip);
        match self.arming(&place, located) {
            Arming::Plant { at, spot, .. } if self.belongs_in_register(probe, &place) => {
                match registers.take(probe, &place) {
                    Ok(()) if edits.join_debug(probe, ip, at, spot) => NewState::Armed { ip, at },
                    Ok(()) => NewState::Refused(register_sites::TAKEN.to_owned()),
                    Err(reason) => NewState::Refused(reason.to_owned()),
                }
            }
            Arming::Plant { at, spot, .. }
                if self.is_better_in_register(probe)
                    && !registers.are_wanted()
                    && !edits.has_plant(at)
                    && edits.join_debug(probe, ip, at, spot) =>
            {
                NewState::Armed { ip, at }
            }
            Arming::Plant { at, spot, len } => {
                edits.join(probe, ip, at, spot, len);
                NewState::Armed { ip, at }
            }
            Arming::Debug { at, spot } if edits.join_debug(probe, ip, at, spot) => {
                NewState::Armed { ip, at }
            }
            Arming::Debug { .. } => NewState::Refused(
                "the kernel patches this instruction itself at run time, and all four debug registers are taken"
                    .to_owned(),
            ),
            Arming::Watch(pieces) => NewState::Watching(pieces),
            Arming::Later(reason) => NewState::Pending(reason.to_owned()),
            Arming::Refused(reason) => NewState::Refused(reason),
        }
    }

    /// Whether hidden plants, each of which makes a page slow, do without the event's probe now.
    fn is_needless(&self, event: KernelEvent) -> bool {
        let is_booted = self.plants.kernel_is_settled();
        match event {
            // For detours and jumps, which cannot be hidden.
            KernelEvent::EarlyTraps | KernelEvent::CpuOnline | KernelEvent::CpuOffline => true,
            // The guest executes elsewhere what its own jumps displace.
            KernelEvent::Reader(Reader::CheckJump | Reader::WriteJumps) => false,
            // Others read the guest's own bytes.
            KernelEvent::Reader(_) => true,
            KernelEvent::BootPatched => is_booted,
            KernelEvent::InitFreed => !is_booted || self.running.init_freed.get(),
            // Only a program loads another kernel.
            KernelEvent::NextKernel => !is_booted,
            _ => false,
        }
    }

    /// Whether a debug register reports the event of the probe better than a hidden plant: once, while the kernel boots. Code that the kernel executes
    /// often may be on the page. Later, the debug registers belong to the guest.
    fn is_better_in_register(&self, probe: &Probe) -> bool {
        let boots = matches!(
            probe.purpose,
            Purpose::KernelEvent(KernelEvent::BootPatched | KernelEvent::InitFreed)
        );
        boots && self.running.hides_plants() && self.running.abilities.debug_execute
    }

    /// Whether the probe keeps its plant while the knob removes all others: the probe reports the reuse of memory to which
    /// plants would return, and the engine cannot detect the reuse later.
    fn stays_while_disarmed(&self, probe: &Probe) -> bool {
        match probe.purpose {
            Purpose::KernelEvent(KernelEvent::BootPatched) => !self.running.boot_patched.get(),
            Purpose::KernelEvent(KernelEvent::InitFreed) => !self.running.init_freed.get(),
            Purpose::KernelEvent(KernelEvent::NextKernel) => true,
            _ => false,
        }
    }
}

/// The next state of a watchpoint whose process is not there. A disabled watchpoint may not see a process of the number: the reason
/// afterwards is not that no process was started.
fn without_task(probe: &Probe, member: &TaskMember, is_off: bool) -> NewState {
    let pid = member.pid;
    match (probe.status.state(), is_off) {
        (ProbeState::Refused, _) => NewState::AsItIs,
        (_, true) => NewState::Disabled,
        (ProbeState::Disabled, false) => NewState::Pending(format!(
            "the guest has no process with the number {pid} since the watchpoint was enabled"
        )),
        (_, false) => NewState::AsItIs,
    }
}
