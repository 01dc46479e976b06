//! Calls that are followed to their return.

use address::Gva;
use events::Event;
use text::testing::FakeVcpu;

use super::{PLAIN, Rig, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::SyntheticKernel;

/// Within two stacks of 16 KiB.
pub(super) const STACK: u64 = super::STACK + 0x1000;
const OTHER_STACK: u64 = STACK + 0x1_0000;

/// Functions of the guest's, and a place to return to.
pub(super) struct Guest {
    pub(super) rig: Rig,
    pub(super) return_site: Gva,
}

impl Guest {
    fn new(functions: &[&str], probes: &[&str]) -> (Self, Vec<Gva>) {
        let mut kernel = SyntheticKernel::new();
        let at = functions
            .iter()
            .map(|name| kernel.function(name, &PLAIN))
            .collect();
        // Behind its first instruction.
        let return_site = kernel.function("caller", &PLAIN).wrapping_add(1);
        let rig = Rig::new(&kernel, probes);
        (Self { rig, return_site }, at)
    }

    /// A vCPU executes the plant at `at`, with the stack pointer at `rsp`.
    pub(super) fn reach(&self, at: Gva, rsp: u64) -> FakeVcpu {
        let mut vcpu = vcpu(at);
        vcpu.regs.rsp = rsp;
        let engine = &self.rig.engine;
        let outcome = engine.hits.on_hit(&mut vcpu, at).expect("handled");
        if outcome == HitOutcome::NeedsPause {
            engine
                .paused_hits
                .on_paused_hit(&mut vcpu, &self.rig.paused, at, |_, _| {
                    panic!("nothing to step")
                })
                .expect("handled");
        }
        vcpu
    }

    pub(super) fn call(&self, function: Gva, rsp: u64) {
        self.rig.memory.put(rsp, &self.return_site.0.to_le_bytes());
        self.reach(function, rsp);
    }

    /// Calls in flight, returned, and given up because they never return.
    pub(super) fn accounted(&self) -> (u64, u64, u64) {
        let probe = self.rig.probe(0);
        let abandoned = probe.missed.get("abandoned").copied().unwrap_or(0);
        let (in_flight, returns) = (probe.in_flight.expect("followed"), probe.returns);
        (in_flight, returns.expect("followed"), abandoned)
    }
}

#[test]
fn a_call_returns_once() {
    let (guest, at) = Guest::new(&["probed"], &["kretprobe:probed"]);
    guest.call(at[0], STACK);
    assert_eq!(guest.accounted(), (1, 0, 0));
    guest.reach(guest.return_site, STACK + 8);
    assert_eq!(guest.accounted(), (0, 1, 0));
    guest.reach(guest.return_site, STACK + 8);
    assert_eq!(guest.accounted(), (0, 1, 0));
}

#[test]
fn last_calls_of_a_dying_task_are_abandoned_at_the_task_switch() {
    let (guest, at) = Guest::new(
        &["probed", "do_task_dead", "put_task_struct_rcu_user"],
        &["kretprobe:probed"],
    );
    let [probed, task_dead, left] = at[..] else {
        panic!("three functions")
    };
    guest.call(probed, STACK);
    guest.call(task_dead, STACK - 0x20);
    assert_eq!(guest.accounted(), (0, 0, 1), "it never comes back");
    // What it calls now may return, and the call that leaves the processor to another task does not.
    guest.call(probed, STACK - 0x80);
    guest.reach(guest.return_site, STACK - 0x80 + 8);
    assert_eq!(guest.accounted(), (0, 1, 1));
    guest.call(probed, STACK - 0x40);
    assert_eq!(guest.accounted(), (1, 1, 1));
    guest.call(probed, OTHER_STACK);
    guest.call(left, OTHER_STACK - 0x20);
    assert_eq!(guest.accounted(), (1, 1, 2), "the other task's call stays");
    // The later release of a task does not end calls of the processor's current task.
    guest.call(left, OTHER_STACK - 0x20);
    assert_eq!(guest.accounted(), (1, 1, 2));
}

#[test]
fn events_have_the_number_of_followed_calls_around_them() {
    let (guest, at) = Guest::new(
        &["outer", "inner"],
        &["kretprobe:outer", "kprobe:inner", "kretprobe:inner"],
    );
    let [outer, inner] = at[..] else {
        panic!("two functions")
    };
    guest.call(outer, STACK);
    guest.call(inner, STACK - 0x40);
    guest.reach(guest.return_site, STACK - 0x40 + 8);
    guest.call(inner, OTHER_STACK);
    guest.reach(guest.return_site, OTHER_STACK + 8);
    guest.reach(guest.return_site, STACK + 8);
    let depths = guest.rig.events.0.lock().expect("events");
    let depths: Vec<_> = depths
        .iter()
        .filter_map(|event| match event {
            Event::Hit(hit) => Some(("hit", hit.depth)),
            Event::Return(told) => Some(("return", told.depth)),
            Event::Note(_) | Event::Summary(_) => None,
        })
        .collect();
    assert_eq!(
        depths,
        [
            ("hit", 1),
            ("return", 1),
            ("hit", 0),
            ("return", 0),
            ("return", 0)
        ]
    );
}
