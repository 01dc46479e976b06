//! Calls followed to their return, of functions with a jump at the entry.

use events::{Event, ProbeSummary};
use text::testing::DETOUR_GPA;

use super::*;

/// `mov rax, function; call rax; nop; ret`
fn caller_of(function: Gva) -> [u8; 11] {
    let [a, b, c, d, ..] = function.0.to_le_bytes();
    [0x48, 0xc7, 0xc0, a, b, c, d, 0xff, 0xd0, 0x90, 0xc3]
}

struct Guest {
    rig: Rig,
    probed: Gva,
    callers: [Gva; 2],
}

impl Guest {
    fn new(probe: &str) -> Self {
        let (mut kernel, probed) = roomy_on_3();
        let callers = ["one", "other"].map(|name| kernel.function(name, &caller_of(probed)));
        let rig = Rig::with(&kernel, &[], ABILITIES);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let new: ProbeSpec = probe.parse().expect("a probe");
        rig.engine
            .register(&rig.paused, &[new.into()])
            .expect("registered");
        let guest = Self {
            rig,
            probed,
            callers,
        };
        // Exits: at the plant; in the detour, while the ring is not open; at a call whose return site has a plant.
        for _ in 0..3 {
            guest.call(0, 1);
        }
        assert_eq!(guest.rig.shown::<1>(probed), [0xe9]);
        guest
    }

    fn call(&self, caller: usize, argument: u64) {
        assert_eq!(self.rig.call(self.callers[caller], argument), argument + 1);
    }

    fn accounted(&self) -> ProbeSummary {
        let told = self.rig.probe(0);
        let missed: u64 = told.missed.values().sum();
        let (returns, in_flight) = (told.returns.expect("so"), told.in_flight.expect("so"));
        assert_eq!(told.hits, returns + in_flight + missed, "{told:?}");
        told
    }
}

#[test]
fn an_entry_is_recorded_and_only_its_return_exits() {
    let guest = Guest::new("kretprobe:probed");
    let before = guest.accounted();
    for n in 0..20 {
        guest.call(0, n);
    }
    let told = guest.accounted();
    assert_eq!((told.hits, told.returns), (23, Some(23)));
    assert_eq!(told.exits - before.exits, 20, "those of the returns");
    assert_eq!(told.tier, Some(Tier::Optimised));
    let events = guest.rig.events.0.lock().expect("lock");
    let values: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Return(told) => Some(told.retval.0),
            _ => None,
        })
        .collect();
    let expected: Vec<_> = [2, 2, 2].into_iter().chain(1..=20).collect();
    assert_eq!(values, expected);
}

/// The other caller's return site has no plant: the first call from there exits, and the return site is planted.
#[test]
fn a_call_that_returns_elsewhere_exits_once() {
    let guest = Guest::new("kretprobe:probed");
    let before = guest.accounted();
    guest.call(1, 5);
    let told = guest.accounted();
    assert_eq!((told.hits, told.returns), (before.hits + 1, Some(4)));
    assert_eq!(told.exits, before.exits + 2);
    guest.call(1, 6);
    guest.call(1, 6);
    let again = guest.accounted();
    // The first exit finds the plant, and later calls are recorded.
    assert_eq!(again.exits, told.exits + 3);
    assert_eq!(again.returns, Some(6));
}

/// The return site of a recorded call goes before a thread has taken the record out.
#[test]
fn recorded_call_is_followed_after_its_return_site_goes() {
    let guest = Guest::new("kretprobe:probed");
    let rig = &guest.rig;
    let mut vcpu = rig.calling(guest.callers[0], 7, STACK);
    while rig.shown::<1>(guest.probed) != [0xe9] || rig.word(STACK - 16) == 0 {
        rig.run(&mut vcpu, 1);
    }
    // The vCPU is in the function, behind its detour.
    while vcpu.regs.rip != guest.probed.0 + 5 {
        assert_eq!(rig.run(&mut vcpu, 1), Stepped::On);
    }
    // Another probe's change removes the return sites without known calls.
    let other = ["kretprobe:one"
        .parse::<ProbeSpec>()
        .expect("a probe")
        .into()];
    let ids = rig.engine.register(&rig.paused, &other).expect("done");
    rig.engine.unregister(&rig.paused, &ids).expect("done");
    assert_eq!(guest.accounted().in_flight, Some(1));
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    assert_eq!(
        (guest.accounted().in_flight, guest.accounted().returns),
        (Some(0), Some(4))
    );
    // The probe is disabled while a record is in the ring.
    let mut vcpu = rig.calling(guest.callers[0], 7, STACK);
    while vcpu.regs.rip != guest.probed.0 + 5 {
        assert_eq!(rig.run(&mut vcpu, 1), Stepped::On);
    }
    let id = rig.engine.inventory().ids()[0];
    rig.engine.set_enabled(&rig.paused, id, false).expect("set");
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    let told = guest.accounted();
    assert_eq!(told.missed.get("disarmed"), Some(&1), "{told:?}");
    guest.call(0, 1);
    assert_eq!(guest.accounted().hits, told.hits);
}

/// A vCPU has reported its call at the detour's exit, and waits for its turn to plant the return site.
#[test]
fn vcpu_that_waits_for_its_turn_is_not_counted_twice() {
    let guest = Guest::new("kretprobe:probed");
    let rig = &guest.rig;
    let before = guest.accounted();
    let mut vcpu = rig.calling(guest.callers[1], 7, STACK);
    let is_exit = |vcpu: &FakeVcpu| {
        let offset = vcpu.regs.rip.wrapping_sub(REGION.0);
        let detour = rig.paused.detour().expect("it is laid");
        let mut byte = [0];
        offset < 2 << 20
            && detour.read(Gpa(DETOUR_GPA + offset), &mut byte).is_ok()
            && byte == [PlantByte::Port.value()]
    };
    while !is_exit(&vcpu) {
        assert_eq!(rig.run(&mut vcpu, 1), Stepped::On);
    }
    let exit = Gva(vcpu.regs.rip);
    let outcome = rig.engine.hits.on_hit(&mut vcpu, exit).expect("handled");
    assert_eq!(outcome, HitOutcome::NeedsPause);
    rig.stands(&[&vcpu]);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    rig.engine_alone(&mut vcpu, exit);
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    assert_eq!(guest.accounted().hits, before.hits + 1);
}

#[test]
fn maxactive_holds_for_calls_that_are_recorded() {
    let guest = Guest::new("kretprobe:probed");
    let rig = &guest.rig;
    let id = rig.engine.inventory().ids()[0];
    rig.engine.unregister(&rig.paused, &[id]).expect("done");
    let new = ProbeConfig {
        maxactive: Some(1),
        ..new("probed")
    };
    let new = ProbeConfig {
        at: "kretprobe:probed".parse().expect("a probe"),
        ..new
    };
    rig.engine.register(&rig.paused, &[new]).expect("done");
    for _ in 0..3 {
        guest.call(0, 1);
    }
    let mut vcpus: Vec<_> = (0..3)
        .map(|n| rig.calling(guest.callers[0], 7, STACK - 0x8000 * n))
        .collect();
    for vcpu in &mut vcpus {
        while vcpu.regs.rip != guest.probed.0 + 5 {
            assert_eq!(rig.run(vcpu, 1), Stepped::On);
        }
    }
    for vcpu in &mut vcpus {
        assert_eq!(rig.run(vcpu, 100), Stepped::Returned);
    }
    let told = guest.accounted();
    assert_eq!((told.hits, told.returns), (6, Some(4)));
    assert_eq!(told.missed.get("maxactive"), Some(&2));
}
