//! Another kernel takes over.

use address::Gva;
use events::ProbeState;
use introspect::PhysMemory as _;
use text::testing::FakeVcpu;

use super::{PLAIN, ROOT, Rig, STACK, TEXT_ENTRY, gpa, memory_of, skipping, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::{SyntheticKernel, TEXT_GPA};

/// What the next kernel is loaded over, 2 MiB further: a page directory entry.
const NEXT_ENTRY: u64 = TEXT_ENTRY + 1;
const SLIDE: u64 = 2 << 20;

struct Guest {
    rig: Rig,
    probed: Gva,
    returns: Gva,
    leaves: Gva,
    lstar: Gva,
    banner: Gva,
    before: Vec<u8>,
}

fn reach(rig: &Rig, at: Gva, rsp: u64) -> FakeVcpu {
    let mut vcpu = vcpu(at);
    vcpu.regs.rsp = rsp;
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    if outcome == HitOutcome::NeedsPause {
        let run = |_: &mut _, _: text::To<'_>| panic!("nothing to step");
        rig.engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &rig.paused, at, run)
            .expect("handled");
    }
    vcpu
}

impl Guest {
    fn new(probes: &[&str]) -> Self {
        let mut kernel = SyntheticKernel::new();
        let probed = kernel.function("probed", &PLAIN);
        let returns = kernel.function("caller", &PLAIN).wrapping_add(1);
        let leaves = kernel.function("machine_kexec", &PLAIN);
        kernel.function("rest_init", &PLAIN);
        let lstar = kernel.function("entry_SYSCALL_64", &PLAIN);
        let banner = kernel.variable("linux_banner", 0x78_756e_694c);
        kernel.variable("behind", 0);
        let memory = memory_of(&kernel, TEXT_GPA, TEXT_ENTRY);
        let before = memory.bytes();
        let rig = Rig::unarmed(memory, &kernel, probes, super::ABILITIES);
        rig.engine.arm_loaded(&rig.paused).expect("armed");
        Self {
            rig,
            probed,
            returns,
            leaves,
            lstar,
            banner,
            before,
        }
    }

    /// The kernel has patched itself, and a call is in flight.
    fn runs(&self) {
        let rest_init = self.rig.engine.kernel().symbols().address_of("rest_init");
        reach(&self.rig, rest_init.expect("known"), STACK);
        self.rig.memory.put(STACK, &self.returns.0.to_le_bytes());
        reach(&self.rig, self.probed, STACK);
    }

    /// The next kernel is mapped where the first one was and one large page further, and has its entry for system calls
    /// there.
    fn starts_next(&self) {
        let table = self.rig.word(super::UPPER_DIRECTORY + 8 * TEXT_ENTRY);
        let at = super::UPPER_DIRECTORY + 8 * NEXT_ENTRY;
        self.rig.memory.put(at, &table.to_le_bytes());
        let mut vcpu = FakeVcpu::at(self.lstar, ROOT);
        let lstar = self.lstar.wrapping_add(SLIDE);
        assert!(self.rig.engine.handover.awaits_kernel());
        self.rig
            .engine
            .handover
            .locate(&mut vcpu, &self.rig.paused, lstar)
            .expect("looked at");
    }
}

#[test]
fn memory_is_the_guests_own_when_another_kernel_is_started() {
    let guest = Guest::new(&["kprobe:probed", "kretprobe:probed"]);
    guest.runs();
    assert_ne!(guest.rig.seen(guest.probed), PLAIN[0]);
    assert_ne!(guest.rig.seen(guest.returns), PLAIN[1]);
    assert!(!guest.rig.paused.read_only().is_empty());
    reach(&guest.rig, guest.leaves, STACK - 64);
    let mut now = guest.rig.memory.bytes();
    // The test itself has written to the stack.
    let stack = usize::try_from(STACK).expect("small");
    now[stack..stack + 8].fill(0);
    assert_eq!(now, guest.before);
    assert_eq!(guest.rig.paused.read_only(), []);
    assert_eq!(guest.rig.paused.breakpoints(), [None; 4]);
    assert!(guest.rig.paused.detour().is_none());
    assert_eq!(guest.rig.states(), [ProbeState::Gone; 2]);
    let followed = guest.rig.probe(1);
    assert_eq!((followed.hits, followed.in_flight), (1, Some(0)));
    assert_eq!(followed.missed.get("abandoned"), Some(&1));
}

#[test]
fn plants_stay_if_an_injection_skips_the_start_of_another_kernel() {
    let guest = Guest::new(&["kprobe:probed"]);
    guest.runs();
    let (engine, paused) = (&guest.rig.engine, &guest.rig.paused);
    engine
        .register(paused, &[skipping("kprobe:machine_kexec")])
        .expect("registered");
    reach(&guest.rig, guest.leaves, STACK - 64);
    assert_eq!(guest.rig.probe(1).hits, 1);
    assert_eq!(guest.rig.states(), [ProbeState::Armed; 2]);
    assert_ne!(guest.rig.seen(guest.probed), PLAIN[0]);
    assert!(!engine.handover.awaits_kernel());
}

#[test]
fn probes_registered_between_two_kernels_are_not_planted() {
    let guest = Guest::new(&["kprobe:probed"]);
    reach(&guest.rig, guest.leaves, STACK);
    let spec: manifest::ProbeSpec = "kprobe:caller".parse().expect("a probe");
    let new = manifest::ProbeConfig::from(spec);
    guest
        .rig
        .engine
        .register(&guest.rig.paused, &[new])
        .expect("registered");
    assert_eq!(guest.rig.memory.bytes(), guest.before);
    guest.starts_next();
    let states = guest.rig.states();
    assert_eq!(states, [ProbeState::Armed; 2]);
}

/// The knob was off when it was started.
#[test]
fn kernel_that_was_started_unwatched_is_left_alone() {
    let guest = Guest::new(&["kprobe:probed"]);
    let (engine, paused) = (&guest.rig.engine, &guest.rig.paused);
    engine.set_armed(paused, false).expect("disarmed");
    assert_eq!(guest.rig.seen(guest.probed), PLAIN[0]);
    reach(&guest.rig, guest.leaves, STACK);
    assert_eq!(guest.rig.memory.bytes(), guest.before);
    assert_eq!(paused.read_only(), []);
    engine.set_armed(paused, true).expect("armed");
    assert_eq!(guest.rig.memory.bytes(), guest.before);
    guest.starts_next();
    assert_eq!(guest.rig.states(), [ProbeState::Armed]);
}

#[test]
fn same_kernel_at_another_place_is_probed_again() {
    let guest = Guest::new(&["kprobe:probed"]);
    reach(&guest.rig, guest.probed, STACK);
    reach(&guest.rig, guest.leaves, STACK);
    guest.starts_next();
    assert_eq!(guest.rig.states(), [ProbeState::Armed]);
    reach(&guest.rig, guest.probed.wrapping_add(SLIDE), STACK);
    assert_eq!(guest.rig.probe(0).hits, 2);
    assert!(!guest.rig.engine.handover.awaits_kernel());
}

#[test]
fn another_kernel_is_left_alone() {
    let guest = Guest::new(&["kprobe:probed"]);
    reach(&guest.rig, guest.leaves, STACK);
    guest.rig.memory.put(gpa(guest.banner), b"other");
    guest.starts_next();
    assert_eq!(guest.rig.states(), [ProbeState::Gone]);
    assert_eq!(guest.rig.seen(guest.probed), PLAIN[0]);
    assert!(!guest.rig.engine.handover.awaits_kernel());
    let mut word = [0; 1];
    let at = address::Gpa(gpa(guest.probed));
    guest.rig.memory.read(at, &mut word).expect("memory");
    assert_eq!(word, [PLAIN[0]]);
}
