//! The registers at a probe's hits: they distinguish a guest that goes on from a guest that hangs in the probe.

use std::collections::VecDeque;

use events::Registers;

/// The number of hits on a stack whose registers are compared.
const COMPARED: usize = 8;
/// A kernel's stack has 16 KiB, and begins at a multiple of that.
const STACK_BITS: u32 = 14;
/// The maximum number of stacks of a probe, the last used ones.
const STACKS_MAX: usize = 8;

/// The stack that a vCPU used at a hit. An interrupt has another stack than the interrupted code: hits in the interrupt show nothing
/// about the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stack {
    vcpu: usize,
    number: u64,
}

/// The registers at the last hits on a stack.
#[derive(Debug)]
struct LastHits {
    stack: Stack,
    registers: VecDeque<Registers>,
}

impl LastHits {
    fn is_full(&self) -> bool {
        self.registers.len() == COMPARED
    }

    fn differ(&self) -> bool {
        let before = |at| self.registers.range(..at);
        let is_new = |at: usize| !before(at).any(|before| *before == self.registers[at]);
        (1..self.registers.len()).all(is_new)
    }
}

/// The events of a probe.
#[derive(Debug, Default)]
pub(super) struct ProbeEvents {
    pub(super) count: u64,
    /// The stack of the last hit comes last.
    last: VecDeque<LastHits>,
}

impl ProbeEvents {
    pub(super) fn add(&mut self, vcpu: usize, regs: Registers) {
        self.count += 1;
        let stack = Stack {
            vcpu,
            number: regs.rsp.0 >> STACK_BITS,
        };
        let known = self.last.iter().position(|of| of.stack == stack);
        let mut of = known
            .and_then(|at| self.last.remove(at))
            .unwrap_or_else(|| LastHits {
                stack,
                registers: VecDeque::new(),
            });
        if of.is_full() {
            of.registers.pop_front();
        }
        of.registers.push_back(regs);
        if self.last.len() == STACKS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(of);
    }

    /// Forgets the registers of former hits.
    pub(super) fn forget_registers(&mut self) {
        self.last.clear();
    }

    /// Whether each stack with many hits of `other` has a hit of this probe. A task that slept has few.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let has = |stack: Stack| self.last.iter().any(|of| of.stack == stack);
        let mut frequent = other.last.iter().filter(|of| of.is_full());
        frequent.all(|of| has(of.stack))
    }

    /// Whether a stack has as many hits as are compared, and no stack has the same registers at two of its last hits.
    pub(super) fn registers_change(&self) -> bool {
        self.last.iter().any(LastHits::is_full) && self.last.iter().all(LastHits::differ)
    }
}

#[cfg(test)]
mod tests {
    use events::Hex;

    use super::*;

    fn events(hits: impl IntoIterator<Item = (usize, u64)>) -> ProbeEvents {
        on_stack(0, hits)
    }

    fn on_stack(number: u64, hits: impl IntoIterator<Item = (usize, u64)>) -> ProbeEvents {
        let mut events = ProbeEvents::default();
        for (vcpu, rdi) in hits {
            events.add(vcpu, registers(number, rdi));
        }
        events
    }

    fn registers(stack: u64, rdi: u64) -> Registers {
        Registers {
            rdi: Hex(rdi),
            rsp: Hex(stack << STACK_BITS),
            ..Registers::default()
        }
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
    fn entries_of_interrupts_are_not_those_of_the_code_that_they_interrupt() {
        let entries = on_stack(1, (0..100).map(|rdi| (0, rdi)));
        let loops = on_stack(2, (0..100).map(|rdi| (0, rdi)));
        assert!(entries.registers_change() && loops.registers_change());
        assert!(!entries.covers(&loops));
        // A task that slept comes back without an entry, once.
        let slept = on_stack(2, [(0, 7)]);
        assert!(entries.covers(&slept));
    }

    #[test]
    fn stacks_used_last_are_known() {
        let mut events = ProbeEvents::default();
        for stack in 0..100 {
            events.add(0, registers(stack, 1));
            events.add(0, registers(100, stack));
        }
        assert_eq!(events.last.len(), STACKS_MAX);
        assert!(events.registers_change());
    }

    #[test]
    fn registers_before_are_forgotten() {
        let mut events = events((0..100).map(|rdi| (0, rdi)));
        events.forget_registers();
        assert!(!events.registers_change());
        assert_eq!(events.count, 100);
    }
}
