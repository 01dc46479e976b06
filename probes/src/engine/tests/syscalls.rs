//! Probes of system calls, whose arguments are in memory.

use address::Gva;
use events::Hex;
use manifest::{Action, ProbeConfig, ProbeKind, ProbeSpec};
use text::testing::FakeVcpu;

use super::{ABILITIES, DATA, PLAIN, Rig, STACK, TEXT_ENTRY, TEXT_GPA, memory_of, vcpu};
use crate::engine::EngineAction;
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::SyntheticKernel;

/// The members of `struct pt_regs`, from the first on.
const SAVED: [&str; 15] = [
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
];
/// The registers of arguments, in order.
const ARGUMENTS: [&str; 6] = ["di", "si", "dx", "r10", "r8", "r9"];
const SAVED_AT: u64 = DATA + 0x400;

fn new(spec: &str, filter: Option<&str>, action: Action) -> ProbeConfig<EngineAction> {
    let probe = ProbeConfig {
        filter: filter.map(|filter| filter.parse().expect(filter)),
        ..ProbeConfig::from(spec.parse::<ProbeSpec>().expect(spec))
    };
    probe.with_action(action.into())
}

fn aggregate(text: &str) -> Action {
    Action::Aggregate(text.parse().expect(text))
}

/// A kernel with the system call `f`.
fn rig(probes: &[ProbeConfig<EngineAction>]) -> (Rig, Gva, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("__x64_sys_f", &PLAIN);
    let site = kernel.function("g", &PLAIN).wrapping_add(1);
    // No instruction in 64-bit mode.
    kernel.function("__x64_sys_bad", &[0x06]);
    let memory = memory_of(&kernel, TEXT_GPA, TEXT_ENTRY);
    let rig = Rig::unarmed(memory, &kernel, &[], ABILITIES);
    rig.engine.arm_loaded(&rig.paused).expect("armed");
    rig.engine
        .register(&rig.paused, probes)
        .expect("registered");
    (rig, at, site)
}

/// A system call with `arguments`.
fn call(rig: &Rig, at: Gva, arguments: [u64; 6]) -> FakeVcpu {
    for (offset, name) in (0..).step_by(8).zip(SAVED) {
        let argument = ARGUMENTS.iter().position(|argument| *argument == name);
        // The other registers hold something else.
        let value = argument.map_or(!0, |index| arguments[index]);
        rig.memory.put(SAVED_AT + offset, &value.to_le_bytes());
    }
    let mut vcpu = vcpu(at);
    (vcpu.regs.rdi, vcpu.regs.rsi, vcpu.regs.rcx) = (SAVED_AT, 0x51, 0xc1);
    reach(rig, &mut vcpu, at);
    vcpu
}

fn reach(rig: &Rig, vcpu: &mut FakeVcpu, at: Gva) {
    if rig.engine.hits.on_hit(vcpu, at).expect("handled") == HitOutcome::NeedsPause {
        let paused = &rig.engine.paused_hits;
        let passed = paused.on_paused_hit(vcpu, &rig.paused, at, |_, _| panic!("nothing to step"));
        passed.expect("handled");
    }
}

#[test]
fn a_hit_has_the_arguments_of_the_program_and_the_registers_of_the_kernel() {
    let (rig, at, _) = rig(&[new("syscall:f", None, Action::Trace)]);
    let vcpu = call(&rig, at, [10, 11, 12, 13, 14, 15]);
    let hits = rig.hits();
    assert_eq!(&*hits[0].probe, "syscall:f");
    assert_eq!(hits[0].args, [10, 11, 12, 13, 14, 15].map(Hex));
    assert_eq!(hits[0].regs.rdi, Hex(SAVED_AT));
    assert_eq!((vcpu.regs.rdi, vcpu.regs.rsi), (SAVED_AT, 0x51));
    let status = rig.engine.inventory().statuses().remove(0);
    assert_eq!(status.kind, ProbeKind::Syscall);
}

#[test]
fn filters_and_aggregates_read_the_arguments_of_the_program() {
    let (rig, at, _) = rig(&[
        new("syscall:f", Some("arg3 == 13 && arg0 != 9"), Action::Trace),
        new("syscall:f", None, aggregate("sum(arg2)")),
        new("syscall:f", Some("rsi == 0x51"), Action::Count),
    ]);
    for arguments in [
        [10, 11, 12, 13, 14, 15],
        [9, 1, 1, 13, 1, 1],
        [1, 1, 1, 2, 1, 1],
    ] {
        call(&rig, at, arguments);
    }
    let hits = rig.hits();
    assert_eq!(hits.len(), 1);
    assert_eq!(hits[0].args[0], Hex(10));
    let result = rig.probe(1).result.map(|result| result.to_string());
    assert_eq!(result.as_deref(), Some("sum(arg2): 14"));
    assert_eq!(rig.probe(2).hits, 3, "a register is the kernel's own");
}

#[test]
fn a_return_is_chosen_by_the_arguments_of_its_call() {
    let (rig, at, site) = rig(&[new("retsyscall:f", Some("arg1 == 5"), Action::Trace)]);
    for (argument, returned) in [(5, 3_u64), (4, 9), (5, 7)] {
        rig.memory.put(STACK, &site.0.to_le_bytes());
        call(&rig, at, [0, argument, 0, 0, 0, 0]);
        let mut vcpu = vcpu(site);
        (vcpu.regs.rsp, vcpu.regs.rax) = (STACK + 8, returned);
        reach(&rig, &mut vcpu, site);
    }
    let probe = rig.probe(0);
    assert_eq!((probe.hits, probe.returns), (2, Some(2)));
    assert_eq!(probe.probe, "retsyscall:f");
    let status = rig.engine.inventory().statuses().remove(0);
    assert_eq!(status.kind, ProbeKind::Retsyscall);
}

#[test]
fn a_refused_system_call_is_listed_as_one() {
    let (rig, _, _) = rig(&[
        new("syscall:b*", None, Action::Trace),
        new("retsyscall:b*", None, Action::Trace),
    ]);
    let statuses = rig.engine.inventory().statuses();
    let kinds: Vec<_> = statuses.iter().map(|status| status.kind).collect();
    assert_eq!(kinds, [ProbeKind::Syscall, ProbeKind::Retsyscall]);
}

#[test]
fn arguments_that_are_not_in_memory_are_zero() {
    let (rig, at, _) = rig(&[
        new("syscall:f", None, Action::Trace),
        new("syscall:f", Some("arg0 == 0"), Action::Count),
    ]);
    let mut vcpu = vcpu(at);
    vcpu.regs.rdi = 0x7000_0000_0000;
    reach(&rig, &mut vcpu, at);
    vcpu.regs.rip = at.0;
    reach(&rig, &mut vcpu, at);
    assert_eq!(rig.hits()[0].args, [0; 6].map(Hex));
    assert_eq!(rig.probe(1).hits, 2);
    // Each probe says so once, for its filter too.
    let notes = rig.notes().into_iter();
    let of = notes.filter(|note| note.text.contains("cannot be read"));
    assert_eq!(of.count(), 2);
}
