//! An `int3` replaces a plant only while every vCPU uses the kernel's handler of `int3`.

use super::int3::{handler, table};
use super::*;

/// `push rbp; lea eax, [rdi + 1]; pop rbp; ret`
const SHORT: [u8; 6] = [0x55, 0x8d, 0x47, 1, 0x5d, 0xc3];
const PLANT: u8 = PlantByte::Port.value();
const WAITS_FOR_1: &str = "`push rbp` has fewer than the 5 bytes of a jump; \
    vCPU 1 is not known to use the kernel's handler of int3: it has not started, or is offline";

/// A machine with two vCPUs.
struct Guest {
    rig: Rig,
    probed: Gva,
    /// The addresses in a kernel that takes CPUs offline.
    linux: Option<Linux>,
}

#[derive(Clone, Copy)]
struct Linux {
    mask: Gva,
    startup: Gva,
    dead: Gva,
    /// Called after the kernel has patched itself; its page tables are final.
    booted: Gva,
}

impl Linux {
    fn added_to(kernel: &mut SyntheticKernel) -> Self {
        Self {
            mask: kernel.variable("__cpu_online_mask", 1),
            startup: kernel.function("cpu_startup_entry", &PLAIN),
            dead: kernel.function("arch_cpu_idle_dead", &PLAIN),
            booted: kernel.function("rest_init", &PLAIN),
        }
    }
}

impl Guest {
    fn new(mut kernel: SyntheticKernel, linux: Option<Linux>) -> Self {
        let probed = kernel.function("probed", &SHORT);
        handler(&mut kernel);
        let mut rig = Rig::with(&kernel, &[], ABILITIES);
        rig.paused.further_vcpus = 1;
        table(&rig);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        rig.engine
            .register(&rig.paused, &[count("probed")])
            .expect("registered");
        Self { rig, probed, linux }
    }

    fn bare() -> Self {
        Self::new(SyntheticKernel::new(), None)
    }

    fn linux() -> Self {
        let mut kernel = SyntheticKernel::new();
        let linux = Linux::added_to(&mut kernel);
        Self::booted(kernel, linux)
    }

    fn booted(kernel: SyntheticKernel, linux: Linux) -> Self {
        let guest = Self::new(kernel, Some(linux));
        guest.calls(0, linux.booted);
        guest
    }

    /// vCPU `index` calls a function.
    fn calls(&self, index: usize, at: Gva) {
        let mut vcpu = self.vcpu(index, at);
        assert_eq!(self.rig.run(&mut vcpu, 1000), Stepped::Returned);
    }

    fn vcpu(&self, index: usize, at: Gva) -> FakeVcpu {
        let mut vcpu = self.rig.calling(at, 4, STACK);
        vcpu.index = index;
        vcpu
    }

    /// A CPU without the kernel's interrupt table calls `probed`: an `int3` would be a triple fault.
    fn starting_cpu_calls_probed(&self) {
        assert_eq!(self.rig.shown(self.probed), [PLANT]);
        let mut vcpu = self.vcpu(1, self.probed);
        (vcpu.sregs.idt.base, vcpu.sregs.idt.limit) = (0, 0);
        assert_eq!(self.rig.run(&mut vcpu, 1000), Stepped::Returned);
        assert_eq!(vcpu.regs.rax, 5);
    }

    fn sets_online(&self, cpus: u64) {
        let linux = self.linux.expect("it takes CPUs offline");
        self.rig.memory.put(gpa(linux.mask), &cpus.to_le_bytes());
    }

    fn goes_online(&self) {
        self.sets_online(0b11);
        self.calls(1, self.linux.expect("a kernel").startup);
    }

    fn goes_offline(&self) {
        self.sets_online(0b01);
        self.calls(1, self.linux.expect("a kernel").dead);
    }

    fn hits(&self) -> u64 {
        self.rig.counted(0).0
    }

    fn why(&self) -> Option<String> {
        self.rig.probe(0).unoptimised
    }
}

#[test]
fn int3_waits_until_each_vcpu_has_been_seen() {
    let guest = Guest::bare();
    for _ in 0..3 {
        guest.calls(0, guest.probed);
    }
    assert_eq!(guest.why().as_deref(), Some(WAITS_FOR_1));
    guest.starting_cpu_calls_probed();
    assert_eq!(guest.rig.shown(guest.probed), [PLANT]);
    // The vCPU has loaded the table; the next pause detects the load.
    guest
        .rig
        .engine
        .set_optimising(&guest.rig.paused, false)
        .expect("set");
    guest
        .rig
        .engine
        .set_optimising(&guest.rig.paused, true)
        .expect("set");
    let mut vcpu = guest.vcpu(1, guest.probed);
    let hit = guest.rig.engine.paused_hits.on_paused_hit(
        &mut vcpu,
        &guest.rig.paused,
        guest.probed,
        |_, _| panic!("it is emulated"),
    );
    assert_eq!(hit.expect("handled"), HitOutcome::Resume);
    assert_eq!((guest.rig.shown(guest.probed), guest.why()), (INT3, None));
    guest.calls(0, guest.probed);
    assert_eq!(guest.hits(), 5);
}

/// A vCPU may be checked at its first hit, even if no other plant would have paused the guest.
#[test]
fn first_hit_of_the_last_vcpu_brings_the_int3() {
    let guest = Guest::bare();
    guest.calls(0, guest.probed);
    guest.calls(0, guest.probed);
    assert_eq!(guest.rig.shown(guest.probed), [PLANT]);
    guest.calls(1, guest.probed);
    assert_eq!((guest.rig.shown(guest.probed), guest.hits()), (INT3, 3));
    guest.calls(1, guest.probed);
    assert_eq!(guest.rig.counted(0), (4, 3, Some(Tier::Optimised)));
}

#[test]
fn int3_comes_when_the_last_cpu_is_online_and_goes_when_it_is_offline() {
    let guest = Guest::linux();
    let mut expected = 0;
    for _ in 0..3 {
        guest.calls(0, guest.probed);
        guest.starting_cpu_calls_probed();
        guest.starting_cpu_calls_probed();
        expected += 3;
        // The same with the kernel's interrupt table, while the kernel does not count the CPU as online.
        guest.calls(1, guest.probed);
        expected += 1;
        assert_eq!(
            (guest.hits(), guest.why().as_deref()),
            (expected, Some(WAITS_FOR_1))
        );
        guest.goes_online();
        assert_eq!((guest.rig.shown(guest.probed), guest.why()), (INT3, None));
        for index in [0, 1, 1] {
            guest.calls(index, guest.probed);
        }
        expected += 3;
        assert_eq!(
            (guest.hits(), guest.rig.probe(0).exits),
            (expected, expected - 3 * (expected / 7))
        );
        guest.goes_offline();
        assert_eq!(guest.rig.shown(guest.probed), [PLANT]);
        assert_eq!(guest.why().as_deref(), Some(WAITS_FOR_1));
    }
    assert!(guest.rig.probe(0).missed.is_empty() && guest.rig.notes().is_empty());
}

/// A jump needs no interrupt table.
#[test]
fn jumps_stay_while_a_cpu_is_offline() {
    let mut kernel = SyntheticKernel::new();
    let roomy = kernel.function("roomy", &ROOMY);
    let linux = Linux::added_to(&mut kernel);
    let guest = Guest::booted(kernel, linux);
    let engine = &guest.rig.engine;
    engine
        .register(&guest.rig.paused, &[count("roomy")])
        .expect("registered");
    guest.calls(0, roomy);
    guest.goes_online();
    guest.goes_offline();
    assert_eq!(guest.rig.shown(roomy), [0xe9]);
    assert_eq!(guest.rig.shown(guest.probed), [PLANT]);
}

/// The knob was off when a CPU went offline.
#[test]
fn cpu_that_went_offline_unwatched_holds_int3_back() {
    let guest = Guest::linux();
    let (engine, paused) = (&guest.rig.engine, &guest.rig.paused);
    guest.calls(0, guest.probed);
    guest.goes_online();
    assert_eq!(guest.rig.shown(guest.probed), INT3);
    engine.set_armed(paused, false).expect("disarmed");
    guest.goes_offline();
    engine.set_armed(paused, true).expect("armed");
    assert_eq!(guest.rig.shown(guest.probed), [PLANT]);
    guest.starting_cpu_calls_probed();
    guest.goes_online();
    assert_eq!(guest.rig.shown(guest.probed), INT3);
    // After disarming and arming with all CPUs online, the int3 need not wait.
    engine.set_armed(paused, false).expect("disarmed");
    engine.set_armed(paused, true).expect("armed");
    guest.calls(0, guest.probed);
    assert_eq!(guest.rig.shown(guest.probed), INT3);
}

/// Without the symbol the online CPUs are unknown.
#[test]
fn kernel_without_the_mask_gets_no_int3() {
    let mut kernel = SyntheticKernel::new();
    let linux = Linux {
        mask: Gva(0),
        startup: kernel.function("cpu_startup_entry", &PLAIN),
        dead: kernel.function("arch_cpu_idle_dead", &PLAIN),
        booted: kernel.function("rest_init", &PLAIN),
    };
    let guest = Guest::booted(kernel, linux);
    guest.calls(0, guest.probed);
    guest.calls(1, guest.probed);
    guest.calls(1, linux.startup);
    assert_eq!(guest.rig.shown(guest.probed), [PLANT]);
    assert_eq!(guest.hits(), 2);
}

/// If another vCPU is anywhere between an injected `int3` and the detour when the plant returns, the vCPU is counted once.
#[test]
fn vcpu_on_its_way_to_the_handler_is_counted_once_when_a_cpu_goes_offline() {
    for steps in 0.. {
        let guest = Guest::linux();
        guest.calls(0, guest.probed);
        guest.goes_online();
        let mut vcpu = guest.rig.calling(guest.probed, 4, STACK - 0x100);
        if guest.rig.run(&mut vcpu, steps) == Stepped::Returned {
            assert!(steps > 20);
            break;
        }
        guest.goes_offline();
        guest.starting_cpu_calls_probed();
        assert_eq!(guest.rig.run(&mut vcpu, 200), Stepped::Returned);
        let left = (vcpu.regs.rax, vcpu.regs.rbx, vcpu.regs.rsp);
        assert_eq!(left, (5, 0, STACK - 0x100), "after {steps} steps");
        assert_eq!(guest.hits(), 3, "after {steps} steps");
    }
}

/// A compiler may inline the function that each CPU executes when going offline.
#[test]
fn kernel_that_may_take_cpus_offline_unseen_gets_no_int3() {
    let mut kernel = SyntheticKernel::new();
    kernel.variable("__cpu_online_mask", 0b11);
    kernel.function("takedown_cpu", &PLAIN);
    let guest = Guest::new(kernel, None);
    for index in [0, 1, 0, 1] {
        guest.calls(index, guest.probed);
    }
    assert_eq!(guest.rig.shown(guest.probed), [PLANT]);
    assert_eq!(guest.hits(), 4);
}
