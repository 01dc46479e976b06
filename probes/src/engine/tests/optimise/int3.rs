//! An `int3` for instructions without room for a jump.

use std::sync::atomic::Ordering;

use events::Event;

use super::*;

/// `push qword [rsp + 40]`
const PUSH: [u8; 4] = [0xff, 0x74, 0x24, 0x28];

/// The kernel's handler of `int3`, which counts the guest's own `int3`s in RBX.
pub(super) fn handler(kernel: &mut SyntheticKernel) -> Gva {
    // nop; cld; push -1; test byte [rsp + 16], 3; jne behind the pushes
    let front = [0x90, 0xfc, 0x6a, 0xff, 0xf6, 0x44, 0x24, 0x10, 3, 0x75, 24];
    // inc rbx; lea rsp, [rsp + 56]; iretq; what is looked at ends in the kernel's text
    let own = [0x48, 0xff, 0xc3, 0x48, 0x8d, 0x64, 0x24, 56, 0x48, 0xcf];
    kernel.function(
        HANDLER,
        &[&front[..], &PUSH.repeat(6), &own, &[0x90; 64]].concat(),
    )
}

/// Points the interrupt table to the handler.
pub(super) fn table(rig: &Rig) {
    let handler = rig.engine.kernel().symbols().address_of(HANDLER);
    let [a, b, c, d, high @ ..] = handler.expect("there is one").0.to_le_bytes();
    let gate = [a, b, 0x10, 0, 0, 0x8e, c, d];
    rig.memory.put(IDT + 16 * 3, &gate);
    rig.memory.put(IDT + 16 * 3 + 8, &high);
}

struct Guest {
    rig: Rig,
    /// `push rbp; lea eax, [rdi + 1]; pop rbp; ret`
    probed: Gva,
    /// `mov rax, probed; call rax; nop; ret`
    caller: Gva,
    /// `int3; ret`
    own: Gva,
    handler: Gva,
}

impl Guest {
    fn with(new: &[ProbeConfig<EngineAction>]) -> Self {
        let mut kernel = SyntheticKernel::new();
        let probed = kernel.function("probed", &[0x55, 0x8d, 0x47, 1, 0x5d, 0xc3]);
        let [a, b, c, d, ..] = probed.0.to_le_bytes();
        let caller = [0x48, 0xc7, 0xc0, a, b, c, d, 0xff, 0xd0, 0x90, 0xc3];
        let caller = kernel.function("caller", &caller);
        let own = kernel.function("own", &[0xcc, 0xc3]);
        let handler = handler(&mut kernel);
        kernel.function("cpu_number", &3u32.to_le_bytes());
        let rig = Rig::with(&kernel, &[], ABILITIES);
        table(&rig);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        rig.engine.register(&rig.paused, new).expect("registered");
        Self {
            rig,
            probed,
            caller,
            own,
            handler,
        }
    }

    /// A guest whose probe counts, by an `int3`.
    fn counting() -> Self {
        let guest = Self::with(&[count("probed")]);
        assert_eq!(guest.rig.call(guest.probed, 1), 2);
        assert_eq!(guest.rig.shown::<2>(guest.probed), [0xcc, 0x8d]);
        guest
    }

    /// Guests with a vCPU that has called `probed` and has executed 0, 1, 2, … instructions, up to its return.
    fn under_way() -> impl Iterator<Item = (usize, Self, FakeVcpu)> {
        (0..).map_while(|steps| {
            let guest = Self::counting();
            let mut vcpu = guest.rig.calling(guest.probed, 4, STACK - 0x100);
            let has_returned = guest.rig.run(&mut vcpu, steps) == Stepped::Returned;
            (!has_returned).then_some((steps, guest, vcpu))
        })
    }

    /// Executes an `int3` of the guest's own. Returns the number of calls of the guest's handler.
    fn takes_its_own(&self) -> u64 {
        let mut vcpu = self.rig.calling(self.own, 0, STACK);
        assert_eq!(self.rig.run(&mut vcpu, 100), Stepped::Returned);
        assert_eq!((vcpu.regs.rsp, vcpu.regs.rflags), (STACK, FLAGS));
        vcpu.regs.rbx
    }
}

#[test]
fn a_short_instruction_is_counted_without_an_exit() {
    let guest = Guest::counting();
    let rig = &guest.rig;
    let before = rig.counted(0);
    for n in 0..20 {
        assert_eq!(rig.call(guest.probed, n), n + 1);
    }
    assert_eq!(before, (1, 1, Some(Tier::Optimised)));
    assert_eq!(rig.counted(0), (21, 1, Some(Tier::Optimised)));
    assert_eq!(rig.probe(0).unoptimised, None);
    assert_eq!(guest.takes_its_own(), 1);
    assert_eq!(rig.own::<2>(guest.probed), [0x55, 0x8d]);
    assert_eq!(
        rig.own::<6>(guest.handler),
        [0x90, 0xfc, 0x6a, 0xff, 0xf6, 0x44]
    );
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.notes().is_empty());
    // The jump in the handler stays, and the guest's own int3s still reach the guest's handler.
    assert_eq!(rig.shown::<1>(guest.handler.wrapping_add(11)), [0xe9]);
    assert_eq!((rig.call(guest.probed, 4), guest.takes_its_own()), (5, 1));
}

/// The offset of the handler's first two pushes.
const PUSHES: [u64; 2] = [11, 15];

#[test]
fn probe_on_the_pushes_of_the_handler_keeps_it_from_being_redirected() {
    for offset in PUSHES {
        let on_push = count(&format!("{HANDLER}+{offset:#x}"));
        let guest = Guest::with(&[on_push, count("probed")]);
        let rig = &guest.rig;
        for n in 0..5 {
            assert_eq!(rig.call(guest.probed, n), n + 1);
        }
        assert_eq!(rig.counted(1), (5, 5, Some(Tier::Emulated)));
        let why = rig.probe(1).unoptimised.expect("it exits");
        assert!(why.contains("handler of int3"), "{why}");
        assert_eq!(guest.takes_its_own(), 1);
        assert_eq!(rig.counted(0).0, 1, "the guest's own int3");
    }
}

#[test]
fn probe_at_the_entry_of_the_handler_counts_the_guests_own_int3s_only() {
    let guest = Guest::with(&[count(HANDLER), count("probed")]);
    let rig = &guest.rig;
    for n in 0..5 {
        assert_eq!(rig.call(guest.probed, n), n + 1);
    }
    assert_eq!(rig.counted(1), (5, 5, Some(Tier::Emulated)));
    let why = rig.probe(1).unoptimised.expect("it exits");
    assert!(why.contains("count it"), "{why}");
    assert_eq!(guest.takes_its_own(), 1);
    assert_eq!(rig.counted(0).0, 1, "the guest's own int3");
}

#[test]
fn late_probe_at_the_entry_of_the_redirected_handler_makes_int3s_exit() {
    let guest = Guest::with(&[count("probed")]);
    let rig = &guest.rig;
    for n in 0..5 {
        assert_eq!(rig.call(guest.probed, n), n + 1);
    }
    let (_, exits, tier) = rig.counted(0);
    assert_eq!(tier, Some(Tier::Optimised));
    let late = rig.engine.register(&rig.paused, &[count(HANDLER)]);
    let late = late.expect("registered");
    for n in 0..5 {
        assert_eq!(rig.call(guest.probed, n), n + 1);
    }
    assert_eq!(rig.counted(0), (10, exits + 5, Some(Tier::Emulated)));
    let why = rig.probe(0).unoptimised.expect("it exits");
    assert!(why.contains("count it"), "{why}");
    assert_eq!(rig.counted(1).0, 0, "no int3 of the guest's own");
    assert_eq!(guest.takes_its_own(), 1);
    assert_eq!(rig.counted(1).0, 1, "the guest's own int3");
    for goes in [false, true] {
        if goes {
            let removed = rig.engine.unregister(&rig.paused, &late);
            removed.expect("removed");
        } else {
            let set = rig.engine.set_enabled(&rig.paused, late[0], false);
            set.expect("disabled");
        }
        assert_eq!(
            rig.shown::<1>(guest.probed),
            INT3,
            "{goes} {:?}",
            rig.probe(0).unoptimised
        );
        assert_eq!(rig.call(guest.probed, 1), 2);
        if !goes {
            let set = rig.engine.set_enabled(&rig.paused, late[0], true);
            set.expect("enabled");
            assert_ne!(rig.shown::<1>(guest.probed), INT3);
        }
    }
    assert_eq!(rig.counted(0), (12, exits + 5, Some(Tier::Optimised)));
}

#[test]
fn late_probe_on_the_pushes_of_the_redirected_handler_is_refused() {
    for offset in PUSHES {
        let guest = Guest::counting();
        let rig = &guest.rig;
        let on_push = count(&format!("{HANDLER}+{offset:#x}"));
        rig.engine.register(&rig.paused, &[on_push]).expect("done");
        let late = rig.probe(1);
        assert_eq!(late.state, events::ProbeState::Refused);
        let why = late.reason.expect("there is one");
        assert!(why.contains("redirects"), "{why}");
        assert_eq!(guest.takes_its_own(), 1);
        assert_eq!(rig.call(guest.probed, 4), 5);
        assert_eq!(rig.counted(0).0, 2);
    }
}

#[test]
fn a_short_instruction_is_recorded_without_an_exit() {
    let guest = Guest::with(&[new("probed")]);
    let rig = &guest.rig;
    for n in 0..10 {
        rig.call(guest.probed, n);
    }
    // One exit at the plant, and one while the ring is not open.
    assert_eq!(rig.counted(0), (10, 2, Some(Tier::Optimised)));
    let told: Vec<_> = rig
        .hits()
        .iter()
        .map(|hit| (hit.ip.0, hit.args[0].0))
        .collect();
    assert_eq!(
        told,
        (0..10).map(|n| (guest.probed.0, n)).collect::<Vec<_>>()
    );
    let [.., last] = &rig.hits()[..] else {
        panic!("none")
    };
    assert_eq!((last.regs.rsp.0, last.regs.rflags.0), (STACK - 8, FLAGS));
}

#[test]
fn neither_side_of_a_followed_call_exits() {
    let probe: ProbeSpec = "kretprobe:probed".parse().expect("a probe");
    let probe = ProbeConfig::from(probe).with_action(EngineAction::default());
    let guest = Guest::with(&[probe]);
    let rig = &guest.rig;
    for n in 0..4 {
        rig.call(guest.caller, n);
    }
    let before = rig.probe(0);
    for n in 4..30 {
        assert_eq!(rig.call(guest.caller, n), n + 1);
    }
    let told = rig.probe(0);
    assert_eq!(
        (told.hits, told.returns, told.in_flight),
        (30, Some(30), Some(0))
    );
    assert_eq!(told.exits, before.exits);
    let events = rig.events.0.lock().expect("lock");
    let returned = events.iter().filter_map(|event| match event {
        Event::Return(told) => Some((told.retval.0, told.ip.0, told.regs.rsp.0, told.vcpu)),
        _ => None,
    });
    let site = guest.caller.0 + 9;
    let expected = (1..=30).map(|value| (value, site, STACK - 8, 3));
    let (first, rest): (Vec<_>, Vec<_>) = (
        returned.clone().take(4).collect(),
        returned.skip(4).collect(),
    );
    assert_eq!(first.len(), 4);
    assert_eq!(rest, expected.skip(4).collect::<Vec<_>>());
}

/// If the plant returns or every plant goes, a vCPU anywhere between `int3` and detour is counted once. The vCPU is not counted
/// if the switch returns it to a site without a plant.
#[test]
fn vcpu_on_its_way_from_an_int3_gets_there() {
    for leaves in [false, true] {
        for (steps, guest, mut vcpu) in Guest::under_way() {
            let rig = &guest.rig;
            if leaves {
                rig.engine.disarm_all(&rig.paused).expect("disarmed");
                assert_eq!(rig.shown::<2>(guest.probed), [0x55, 0x8d]);
            } else {
                rig.engine.set_optimising(&rig.paused, false).expect("set");
                assert_eq!(rig.shown::<1>(guest.probed), [0xee]);
            }
            assert_eq!(
                rig.run(&mut vcpu, 200),
                Stepped::Returned,
                "after {steps} steps"
            );
            let regs = vcpu.regs;
            let left = (regs.rax, regs.rbx, regs.rflags, regs.rsp);
            assert_eq!(left, (5, 0, FLAGS, STACK - 0x100), "after {steps} steps");
            let (hits, ..) = rig.counted(0);
            assert!(
                hits == 2 || (leaves && hits == 1),
                "{hits} after {steps} steps"
            );
            assert_eq!(guest.takes_its_own(), 1);
        }
    }
}

/// The same for an `int3` of the guest's own.
#[test]
fn the_guests_own_breakpoint_gets_to_its_handler() {
    for steps in 0..60 {
        let guest = Guest::counting();
        let rig = &guest.rig;
        let mut vcpu = rig.calling(guest.own, 4, STACK - 0x100);
        rig.run(&mut vcpu, steps);
        rig.engine.disarm_all(&rig.paused).expect("disarmed");
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        let left = (vcpu.regs.rbx, vcpu.regs.rflags, vcpu.regs.rsp);
        assert_eq!(left, (1, FLAGS, STACK - 0x100), "after {steps} steps");
    }
}

impl Guest {
    /// Runs the vCPU to the instruction behind the first probed instruction, where the guest's handler continues.
    fn runs_behind(&self, vcpu: &mut FakeVcpu) {
        for _ in 0..200 {
            if vcpu.regs.rip == self.probed.0 + 1 {
                return;
            }
            assert_eq!(self.rig.run(vcpu, 1), Stepped::On);
        }
        panic!("it is at {:#x}", vcpu.regs.rip);
    }
}

/// The guest patches its text: first an `int3`, whose #BP its handler receives.
#[test]
fn an_int3_that_the_guest_writes_is_its_own() {
    let guest = Guest::counting();
    let rig = &guest.rig;
    rig.guest_writes(guest.probed, &INT3);
    assert_eq!(rig.own::<1>(guest.probed), INT3);
    for hits in 2..5 {
        let mut vcpu = rig.calling(guest.probed, 4, STACK);
        guest.runs_behind(&mut vcpu);
        assert_eq!((vcpu.regs.rbx, rig.counted(0).0), (1, hits));
    }
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    let mut vcpu = rig.calling(guest.probed, 4, STACK);
    guest.runs_behind(&mut vcpu);
    assert_eq!(vcpu.regs.rbx, 1);
    // And back, the first byte last.
    rig.guest_writes(guest.probed, &[0x55]);
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    assert_eq!(rig.call(guest.probed, 4), 5);
}

/// The guest writes an `int3` over an injected `int3`, and executes it, while another vCPU is anywhere behind the injected
/// `int3`. If the other vCPU has not reached the lookup, its `int3` counts as the guest's own, and the probe counts a miss.
#[test]
fn vcpu_on_its_way_to_the_guests_own_int3_counts_as_missed() {
    let mut told = Vec::new();
    for (steps, guest, mut vcpu) in Guest::under_way() {
        let rig = &guest.rig;
        rig.guest_writes(guest.probed, &INT3);
        rig.stands(&[&vcpu]);
        let mut other = rig.calling(guest.probed, 4, STACK);
        guest.runs_behind(&mut other);
        let missed = rig.probe(0).missed.get("disarmed").copied();
        let missed = missed.unwrap_or_default();
        assert_eq!(other.regs.rbx, 1);
        rig.stands(&[]);
        let came_to_handler = rig.run(&mut vcpu, 200) == Stepped::On || vcpu.regs.rbx > 0;
        assert_eq!(rig.counted(0).0 + missed, 3, "after {steps} steps");
        told.push((came_to_handler, missed));
    }
    told.dedup();
    // At the site the vCPU executes the plant. The others are between the int3 and the lookup, and in the detour.
    let handler = [(true, 0), (true, 1), (false, 0)];
    assert_eq!(told, handler);
}

/// The engine cannot see the position of a vCPU below an NMI.
#[test]
fn an_int3_under_an_nmi_counts_as_missed() {
    let guest = Guest::counting();
    let rig = &guest.rig;
    rig.guest_writes(guest.probed, &INT3);
    rig.paused.in_nmi.store(true, Ordering::Relaxed);
    let mut vcpu = rig.calling(guest.probed, 4, STACK);
    guest.runs_behind(&mut vcpu);
    assert_eq!((vcpu.regs.rbx, rig.counted(0).0), (1, 2));
    assert_eq!(rig.probe(0).missed.get("disarmed"), Some(&1));
}

/// The address behind one `int3` is the address of the next: a vCPU that has executed the first returns to the first.
#[test]
fn neighbouring_int3s_are_distinguished() {
    let mut returned = false;
    for steps in 0.. {
        let mut kernel = SyntheticKernel::new();
        // push rbp; push rbx; lea eax, [rdi + 1]; pop rbx; pop rbp; ret
        let code = [0x55, 0x53, 0x8d, 0x47, 1, 0x5b, 0x5d, 0xc3];
        let probed = kernel.function("probed", &code);
        handler(&mut kernel);
        let rig = Rig::with(&kernel, &[], ABILITIES);
        table(&rig);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let probes = [count("probed"), count("probed+1")];
        rig.engine
            .register(&rig.paused, &probes)
            .expect("registered");
        rig.call(probed, 1);
        assert_eq!(rig.shown::<2>(probed), [0xcc; 2]);
        let mut vcpu = rig.calling(probed, 4, STACK - 0x100);
        returned = rig.run(&mut vcpu, steps) == Stepped::Returned;
        if returned {
            break;
        }
        rig.engine.disarm_all(&rig.paused).expect("disarmed");
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        let left = (vcpu.regs.rax, vcpu.regs.rsp);
        assert_eq!(left, (5, STACK - 0x100), "after {steps} steps");
    }
    assert!(returned);
}

#[test]
fn jump_and_relative_instruction_may_be_behind_an_int3() {
    // je over the next; mov eax, [rip + 4]; ret; and a word of data
    let code = [
        0x74, 6, 0x8b, 0x05, 1, 0, 0, 0, 0xc3, 0x90, 0x90, 0x90, 0x90,
    ];
    for (index, offset) in [(0, 0), (1, 2)] {
        let mut kernel = SyntheticKernel::new();
        let at = kernel.function("probed", &code);
        handler(&mut kernel);
        let rig = Rig::with(&kernel, &[], ABILITIES);
        table(&rig);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let name = format!("probed+{offset}");
        rig.engine
            .register(&rig.paused, &[count(&name)])
            .expect("registered");
        for n in 0..4 {
            assert_eq!(rig.call(at, n), 0x9090_9090);
        }
        let lead = [[0xcc], [0xe9]][index];
        assert_eq!(rig.shown::<1>(at.wrapping_add(offset)), lead);
        assert_eq!(rig.counted(0), (4, 1, Some(Tier::Optimised)));
    }
}

#[test]
fn reason_for_a_missing_int3_is_reported() {
    let none = "`push rbp` has fewer than the 5 bytes of a jump; ";
    let why = |guest: &Guest| guest.rig.probe(0).unoptimised.unwrap_or_default();
    let guest = Guest::with(&[count("probed")]);
    let mut vcpu = guest.rig.calling(guest.probed, 0, STACK);
    vcpu.sregs.idt.base += 16;
    assert_eq!(guest.rig.run(&mut vcpu, 100), Stepped::Returned);
    let unseen = "vCPU 0 is not known to use the kernel's handler of int3: it has not started, or is offline";
    assert_eq!(why(&guest), format!("{none}{unseen}"));
    // The reason is not determined at each hit, but whenever the vCPUs are paused for a hit.
    assert_eq!(guest.rig.call(guest.probed, 0), 1);
    assert_eq!(why(&guest), format!("{none}{unseen}"));
    guest
        .rig
        .engine
        .register(&guest.rig.paused, &[count("caller")])
        .expect("registered");
    guest.rig.call(guest.caller, 0);
    assert_eq!(guest.rig.call(guest.probed, 0), 1);
    assert_eq!(
        (why(&guest), guest.rig.shown(guest.probed)),
        (String::new(), INT3)
    );
}

/// The handler is not redirected while a vCPU is between the two displaced instructions.
#[test]
fn handler_is_not_redirected_with_a_vcpu_between_displaced_instructions() {
    for in_nmi in [false, true] {
        let guest = Guest::with(&[count("probed")]);
        let rig = &guest.rig;
        let middle = guest.handler.wrapping_add(11 + 4);
        if in_nmi {
            rig.paused.in_nmi.store(true, Ordering::Relaxed);
        } else {
            *rig.paused.rips.lock().expect("lock") = vec![Gva(1), middle];
        }
        for n in 0..2 {
            assert_eq!(rig.call(guest.probed, n), n + 1);
            assert_eq!(rig.shown::<1>(guest.probed), [0xee]);
            assert_eq!(rig.shown::<4>(guest.handler.wrapping_add(11)), PUSH);
        }
        rig.paused.in_nmi.store(false, Ordering::Relaxed);
        rig.paused.rips.lock().expect("lock").clear();
        for n in 0..2 {
            assert_eq!(rig.call(guest.probed, n), n + 1);
        }
        assert_eq!(rig.shown(guest.probed), INT3);
        assert_eq!(rig.counted(0), (4, 3, Some(Tier::Optimised)));
    }
}

/// The entry of the switch changes: the handler's original bytes are restored. A vCPU in the handler continues as after an
/// unknown `int3`: the handler reads the site and finds no `int3`.
#[test]
fn lost_switch_gives_the_handler_back() {
    let guest = Guest::counting();
    let rig = &guest.rig;
    rig.memory.put(CODE_ENTRY, &[0; 8]);
    rig.engine.optimiser.tend_region(&rig.paused);
    assert_eq!(rig.shown::<4>(guest.handler.wrapping_add(11)), PUSH);
    assert_eq!(rig.shown::<1>(guest.probed), [0xee]);
    for hits in 2..5 {
        assert_eq!((rig.call(guest.probed, 4), rig.counted(0).0), (5, hits));
        assert_eq!(guest.takes_its_own(), 1);
    }
}

/// Another entry changes: the switch still returns vCPUs that have executed an injected `int3`.
#[test]
fn lost_words_leave_the_switch() {
    for (steps, guest, mut vcpu) in Guest::under_way() {
        let rig = &guest.rig;
        let entry = rig.word(DATA_ENTRY);
        rig.memory.put(DATA_ENTRY, &[0; 8]);
        rig.engine.optimiser.tend_region(&rig.paused);
        assert_eq!(rig.shown::<1>(guest.probed), [0xee]);
        assert_eq!(rig.shown::<1>(guest.handler.wrapping_add(11)), [0xe9]);
        // A vCPU inside the detour would access the counters that the guest has unmapped.
        rig.memory.put(DATA_ENTRY, &entry.to_le_bytes());
        assert_eq!(rig.run(&mut vcpu, 1000), Stepped::Returned);
        let left = (vcpu.regs.rax, vcpu.regs.rbx, vcpu.regs.rflags);
        assert_eq!(left, (5, 0, FLAGS));
        assert_eq!(rig.counted(0).0, 2, "after {steps} steps");
        assert_eq!(guest.takes_its_own(), 1);
    }
}

/// The kernel hands over with the switch in place: the handler's original bytes are restored.
#[test]
fn handing_over_gives_the_handler_back() {
    let guest = Guest::counting();
    let rig = &guest.rig;
    rig.engine
        .optimiser
        .hand_over_region(&rig.paused)
        .expect("handed over");
    assert_eq!(rig.shown::<4>(guest.handler.wrapping_add(11)), PUSH);
    let entries = [0, 8, 16].map(|offset| rig.word(CODE_ENTRY + offset));
    assert_eq!(entries, [0; 3]);
    assert_eq!((rig.call(guest.probed, 4), guest.takes_its_own()), (5, 1));
}
