//! Kernel events of files that the engine does not see: a page may then be executed before it is hidden.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use events::ProbeState;

use super::Uprobes;
use super::target::Target;
use crate::registry::{FileEvent, KernelEvent, Missed, Probe, Purpose};

impl Uprobes {
    /// The kernel event probes of files.
    fn event_probes(&self) -> impl Iterator<Item = (&Arc<Probe>, FileEvent)> {
        let probes = self.plants.kernel_event_probes.iter();
        probes.filter_map(|probe| match probe.purpose {
            Purpose::KernelEvent(KernelEvent::File(event)) => Some((probe, event)),
            _ => None,
        })
    }

    /// A needed event without an armed probe, once the guest's programs may run.
    pub(super) fn unseen_event(&self) -> Option<FileEvent> {
        if !self.running.boot_patched.get() {
            return None;
        }
        let events = self.events.prepare(&self.running.kernel).iter();
        let known = events.filter(|(_, arguments)| arguments.is_some());
        let known: Vec<FileEvent> = known.map(|(event, _)| *event).collect();
        let is_armed = |group: &[FileEvent]| {
            let mut probes = self.event_probes();
            probes.any(|(probe, event)| {
                let is_armed = || probe.status.state() == ProbeState::Armed;
                group.contains(&event) && known.contains(&event) && is_armed()
            })
        };
        let mut needed = FileEvent::needed(&self.running.kernel).into_iter();
        let unseen = needed.find(|group| !is_armed(group))?;
        unseen.first().copied()
    }

    /// Counts the executions that the kernel event probes have missed since the last call, for each of `targets`.
    pub(super) fn miss_lost_events(&self, targets: &[Target]) {
        let all = self.event_probes();
        let all = all.map(|(probe, _)| probe.counters.missed_in_all());
        let all = all.fold(0, u64::saturating_add);
        let lost = all.saturating_sub(self.lost_events.swap(all, Ordering::AcqRel));
        for target in targets {
            target.probe.counters.add_missed(Missed::Unprotected, lost);
        }
    }
}
