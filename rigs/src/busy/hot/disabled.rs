//! Hits of disabled probes. A context (a task, or an interrupt on top of a task) may stand in a detour before the count when the probe is
//! disabled. Such a context counts the hit after the pause.
//!
//! The guest's kernel is not preemptible. At a pause, all contexts in detours are therefore the vCPUs' present contexts in the kernel,
//! and the contexts interrupted by them. When a later pause finds a vCPU in user mode, all contexts of the vCPU have ended. Until then,
//! the probes disabled in a pause may together count a few hits for each vCPU in the kernel at the pause. Afterwards, the probes may
//! count none.

use std::collections::{BTreeMap, BTreeSet};

use address::Gva;
use events::ProbeId;

/// The maximum for a vCPU: a task, a soft interrupt, a hard interrupt and an NMI.
const CONTEXTS_PER_VCPU: u64 = 4;
/// The kernel's half of the address space.
const KERNEL_HALF: Gva = Gva(1 << 63);

/// The disabled probes.
#[derive(Debug, Default)]
pub(super) struct DisabledProbes {
    /// For each probe: the pause that disabled the probe, and the hits at the last check.
    probes: BTreeMap<ProbeId, (usize, u64)>,
    pauses: Vec<Pause>,
    /// The number of hits after disabling.
    pub(super) late: u64,
}

/// A pause of the guest, in which probes may have been disabled.
#[derive(Debug)]
struct Pause {
    /// The vCPUs in the kernel at the pause and at each later pause.
    in_kernel: Vec<usize>,
    /// The number of further hits allowed to the probes disabled in the pause.
    possible: u64,
}

impl DisabledProbes {
    pub(super) fn ids(&self) -> BTreeSet<ProbeId> {
        self.probes.keys().copied().collect()
    }

    pub(super) fn has(&self, id: ProbeId) -> bool {
        self.probes.contains_key(&id)
    }

    /// Begins a pause with the vCPUs at `rips`, and checks the hits of the disabled probes.
    pub(super) fn pause(
        &mut self,
        rips: &[Gva],
        hits: impl Fn(ProbeId) -> Option<u64>,
    ) -> Result<(), String> {
        for (id, (pause, before)) in &mut self.probes {
            let now = hits(*id).ok_or("a disabled probe is gone")?;
            let pause = &mut self.pauses[*pause];
            let late = now.checked_sub(*before);
            let possible = late.and_then(|late| pause.possible.checked_sub(late));
            let (Some(late), Some(possible)) = (late, possible) else {
                return Err(format!(
                    "{id:?} was disabled, and went from {before} hits to {now}: {pause:?}"
                ));
            };
            (*before, pause.possible) = (now, possible);
            self.late += late;
        }
        for pause in &mut self.pauses {
            pause.in_kernel.retain(|vcpu| is_in_kernel(rips, *vcpu));
            if pause.in_kernel.is_empty() {
                pause.possible = 0;
            }
        }
        let in_kernel: Vec<usize> = (0..rips.len())
            .filter(|vcpu| is_in_kernel(rips, *vcpu))
            .collect();
        self.pauses.push(Pause {
            possible: CONTEXTS_PER_VCPU * in_kernel.len() as u64,
            in_kernel,
        });
        Ok(())
    }

    /// Notes a probe disabled in the present pause.
    pub(super) fn disable(&mut self, id: ProbeId, hits: u64) {
        self.probes.insert(id, (self.pauses.len() - 1, hits));
    }

    /// Notes a probe enabled or removed in the present pause.
    pub(super) fn forget(&mut self, id: ProbeId) {
        self.probes.remove(&id);
    }
}

fn is_in_kernel(rips: &[Gva], vcpu: usize) -> bool {
    rips.get(vcpu).is_some_and(|rip| *rip >= KERNEL_HALF)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: Gva = Gva(0xffff_ffff_8100_0000);
    const PROGRAM: Gva = Gva(0x40_0000);

    /// Two probes are disabled at 10 hits each, with the vCPUs at `rips`.
    fn disabled(rips: [Gva; 2]) -> DisabledProbes {
        let mut disabled = DisabledProbes::default();
        disabled.pause(&rips, |_| None).expect("none");
        for id in [1, 2] {
            disabled.disable(ProbeId::from(id), 10);
        }
        disabled
    }

    /// The next pause, with the given hits of the two probes.
    fn pause(disabled: &mut DisabledProbes, rips: [Gva; 2], hits: [u64; 2]) -> Result<(), String> {
        disabled.pause(&rips, |id| Some(hits[usize::from(id != ProbeId::from(1))]))
    }

    #[test]
    fn disabled_probe_counts_nothing_if_all_vcpus_were_in_programs() {
        let mut disabled = disabled([PROGRAM; 2]);
        pause(&mut disabled, [KERNEL; 2], [10, 10]).expect("none late");
        pause(&mut disabled, [KERNEL; 2], [10, 11]).expect_err("nobody was in the detour");
    }

    #[test]
    fn probes_disabled_together_count_no_more_than_the_contexts_of_the_vcpus_in_the_kernel() {
        let mut disabled = disabled([KERNEL, PROGRAM]);
        pause(&mut disabled, [KERNEL; 2], [12, 11]).expect("three contexts");
        assert_eq!(disabled.late, 3);
        pause(&mut disabled, [KERNEL; 2], [12, 12]).expect("four");
        pause(&mut disabled, [KERNEL; 2], [13, 12]).expect_err("five");
    }

    #[test]
    fn disabled_probe_counts_nothing_behind_a_pause_with_the_vcpu_in_a_program() {
        let mut disabled = disabled([KERNEL, KERNEL]);
        pause(&mut disabled, [PROGRAM, KERNEL], [11, 10]).expect("late");
        pause(&mut disabled, [KERNEL, PROGRAM], [12, 10]).expect("the other was in the kernel");
        pause(&mut disabled, [KERNEL; 2], [12, 11]).expect_err("both have left it");
    }

    #[test]
    fn count_that_falls_is_wrong() {
        let mut disabled = disabled([KERNEL; 2]);
        pause(&mut disabled, [KERNEL; 2], [9, 10]).expect_err("fewer hits");
    }

    #[test]
    fn probe_that_is_enabled_again_counts() {
        let mut disabled = disabled([PROGRAM; 2]);
        disabled.forget(ProbeId::from(1));
        pause(&mut disabled, [KERNEL; 2], [500, 10]).expect("enabled");
        assert!(!disabled.has(ProbeId::from(1)) && disabled.has(ProbeId::from(2)));
    }
}
