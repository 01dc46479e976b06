//! The registers at a probe's hits: they distinguish a guest that goes on from a guest that hangs in the probe.

use std::collections::VecDeque;

use probes::Registers;

/// The number of hits of a vCPU whose registers are compared.
const COMPARED: usize = 8;

/// The events of a probe.
#[derive(Debug, Default)]
pub(super) struct ProbeEvents {
    pub(super) count: u64,
    /// The registers at the last hits of each vCPU.
    last: Vec<(usize, VecDeque<Registers>)>,
}

impl ProbeEvents {
    pub(super) fn add(&mut self, vcpu: usize, regs: Registers) {
        self.count += 1;
        let of = match self.last.iter().position(|(of, _)| *of == vcpu) {
            Some(of) => of,
            None => {
                self.last.push((vcpu, VecDeque::new()));
                self.last.len() - 1
            }
        };
        let last = &mut self.last[of].1;
        if last.len() == COMPARED {
            last.pop_front();
        }
        last.push_back(regs);
    }

    /// Forgets the registers of former hits.
    pub(super) fn forget_registers(&mut self) {
        self.last.clear();
    }

    /// Whether each vCPU with a hit of `other` has a hit of this probe.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let has = |vcpu: &usize| self.last.iter().any(|(of, _)| of == vcpu);
        other.last.iter().all(|(vcpu, _)| has(vcpu))
    }

    /// Whether a vCPU has as many hits as are compared, and no vCPU has the same registers at two of its last hits.
    pub(super) fn registers_change(&self) -> bool {
        let differ = |last: &VecDeque<Registers>| {
            (1..last.len()).all(|at| !last.range(..at).any(|before| *before == last[at]))
        };
        self.last.iter().any(|(_, last)| last.len() == COMPARED)
            && self.last.iter().all(|(_, last)| differ(last))
    }
}

#[cfg(test)]
mod tests {
    use probes::Hex;

    use super::*;

    fn events(hits: impl IntoIterator<Item = (usize, u64)>) -> ProbeEvents {
        let mut events = ProbeEvents::default();
        for (vcpu, rdi) in hits {
            let regs = Registers {
                rdi: Hex(rdi),
                ..Registers::default()
            };
            events.add(vcpu, regs);
        }
        events
    }

    #[test]
    fn registers_change_after_enough_different_hits_of_a_vcpu() {
        assert!(!events([]).registers_change());
        assert!(!events((0..7).map(|rdi| (0, rdi))).registers_change());
        assert!(events((0..8).map(|rdi| (0, rdi))).registers_change());
        assert!(!events((0..8).map(|rdi| (usize::from(rdi > 3), rdi))).registers_change());
    }

    #[test]
    fn hits_with_the_same_registers_in_turn_are_no_change() {
        assert!(!events([(0, 7); 100]).registers_change());
        assert!(!events((0..100).map(|rdi| (0, rdi % 2))).registers_change());
        assert!(!events((0..100).map(|rdi| (0, rdi % 7))).registers_change());
    }

    #[test]
    fn vcpu_that_hangs_is_no_change_while_the_other_goes_on() {
        let goes_on = (0..100).map(|rdi| (0, rdi));
        assert!(events(goes_on.clone().chain([(1, 7)])).registers_change());
        assert!(!events(goes_on.chain([(1, 7), (1, 7)])).registers_change());
    }

    #[test]
    fn vcpu_that_stays_in_a_loop_does_not_enter_the_function() {
        let entries = events((0..100).map(|rdi| (0, rdi)));
        let loops = events((0..100).map(|rdi| (usize::from(rdi > 50), rdi)));
        assert!(entries.registers_change() && loops.registers_change());
        assert!(!entries.covers(&loops));
        assert!(loops.covers(&entries) && entries.covers(&events([])));
    }

    #[test]
    fn registers_before_are_forgotten() {
        let mut events = events((0..100).map(|rdi| (0, rdi)));
        events.forget_registers();
        assert!(!events.registers_change());
        assert_eq!(events.count, 100);
    }
}
