//! Functions that return before they run.

use address::Gva;
use events::ProbeState;
use manifest::{Due, Injection};

use super::{ABILITIES, PLAIN, Rig, STACK, TEXT_ENTRY, TEXT_GPA, memory_of, one, vcpu};
use crate::engine::engine_action::injecting;
use crate::engine::hits::outcome::HitOutcome;

const RETURNS_TO: u64 = 0x2_2220;

fn rig(due: Due, comm: Option<&str>) -> (Rig, Gva) {
    let (kernel, at) = one("plain", &PLAIN);
    let memory = memory_of(&kernel, TEXT_GPA, TEXT_ENTRY);
    let rig = Rig::unarmed(memory, &kernel, &["kprobe:plain"], ABILITIES);
    let injection = Injection {
        at: "kprobe:plain".parse().expect("a probe"),
        due,
        value: (-12_i64).cast_unsigned(),
        comm: comm.map(str::to_owned),
    };
    rig.engine.arm_loaded(&rig.paused).expect("armed");
    let new = [injecting(&injection)];
    rig.engine.register(&rig.paused, &new).expect("registered");
    rig.memory.put(STACK, &RETURNS_TO.to_le_bytes());
    (rig, at)
}

/// Where the vCPU goes on, its stack pointer and RAX, after a call.
fn call(rig: &Rig, at: Gva) -> (u64, u64, u64) {
    let mut vcpu = vcpu(at);
    vcpu.regs.rax = 77;
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!(outcome, HitOutcome::Resume);
    // What the function has pushed is no return address.
    rig.memory.put(STACK, &RETURNS_TO.to_le_bytes());
    (vcpu.regs.rip, vcpu.regs.rsp, vcpu.regs.rax)
}

#[test]
fn the_call_that_is_due_returns_at_once_and_the_others_run() {
    let (rig, at) = rig(Due::OnHit(2), None);
    let runs = (at.0 + 1, STACK - 8, 77);
    let returns = (RETURNS_TO, STACK + 8, (-12_i64).cast_unsigned());
    assert_eq!(
        [(); 4].map(|()| call(&rig, at)),
        [runs, returns, runs, runs]
    );

    // The probe in front of the injection has all calls as hits.
    assert_eq!(rig.hits().len(), 4);
    assert_eq!([0, 1].map(|probe| rig.probe(probe).hits), [4, 4]);
    let injected = rig.probe(1);
    assert_eq!(injected.probe, "inject:plain");
    assert_eq!(injected.state, ProbeState::Armed);
    let notes = rig.notes();
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].text, "call 2 returns -12 at once");
    assert_eq!(notes[0].probe.as_deref(), Some("inject:plain"));
}

#[test]
fn a_call_whose_return_address_cannot_be_read_runs() {
    let (rig, at) = rig(Due::Every(1), None);
    let mut vcpu = vcpu(at);
    // The push behind the injection faults as without an injection.
    vcpu.regs.rsp = 0x7000_0000_0000;
    let _ = rig.engine.hits.on_hit(&mut vcpu, at);
    assert_ne!(vcpu.regs.rip, RETURNS_TO);
    assert!(
        rig.notes()[0].text.starts_with("call 1 runs"),
        "{:?}",
        rig.notes()
    );
}

#[test]
fn a_task_that_cannot_be_known_is_not_the_one() {
    let (rig, at) = rig(Due::Every(1), Some("mv"));
    assert_eq!(call(&rig, at).0, at.0 + 1);
    assert!(rig.notes().is_empty());
}
