//! Hidden pages of programs: what vCPUs execute, read and write there.

use address::{Gpa, Gva};
use events::ProbeState;
use inspect::FileId;
use text::testing::FakeVcpu;
use vmm::Protection;

use super::{DATA, PLAIN, Rig, STACK, gpa, one, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::uprobes::code_table::{CodePage, CodeTable};

/// `mov [rdi], rax; ret`
const STORE: [u8; 4] = [0x48, 0x89, 0x07, 0xc3];
/// `mov rax, [rdi]; ret`
const LOAD: [u8; 4] = [0x48, 0x8b, 0x07, 0xc3];
/// The 64-bit code segment that makes the vCPU's instructions decodable.
const LONG_MODE: u16 = 1 << 13;

/// Hides the page with the byte at `at`, which has no probe.
fn hide(rig: &Rig, at: u64) {
    let mut table = CodeTable::default();
    let page = CodePage {
        file: FileId::default(),
        number: 0,
        sites: Vec::new(),
        announced: false,
    };
    table.insert(Gpa(at).page(), page);
    let uprobes = &rig.engine.uprobes;
    let hidden = uprobes.protections.hide(&rig.paused, table.addresses());
    hidden.expect("hidden");
    uprobes.hidden.table.store(table.into());
}

fn protected(rig: &Rig) -> Vec<(u64, Protection)> {
    let pages = rig.paused.protected.lock().expect("lock");
    pages.iter().map(|(page, of)| (page.0, *of)).collect()
}

fn vcpu_at(at: Gva) -> FakeVcpu {
    let mut vcpu = vcpu(at);
    vcpu.state.system.segments.cs.attributes = LONG_MODE;
    vcpu
}

#[test]
fn one_exit_executes_a_function_on_a_hidden_page() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    hide(&rig, gpa(at));
    assert_eq!(protected(&rig), [(gpa(at) & !0xfff, Protection::Accesses)]);
    rig.memory.put(STACK, &DATA.to_le_bytes());
    let mut vcpu = vcpu_at(at);
    vcpu.regs.rbp = 7;
    let accesses = &rig.engine.protected_accesses;
    let outcome = accesses.on_protected_access(&mut vcpu, at);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    let regs = vcpu.regs;
    assert_eq!((regs.rip, regs.rsp, regs.rbp), (DATA, STACK + 8, 7));
}

#[test]
fn code_elsewhere_reads_a_hidden_page_one_instruction_an_exit() {
    let (kernel, at) = one("f", &LOAD);
    let rig = Rig::new(&kernel, &[]);
    hide(&rig, DATA);
    rig.memory.put(DATA, &[5]);
    let mut vcpu = vcpu_at(at);
    vcpu.regs.rdi = DATA;
    let accesses = &rig.engine.protected_accesses;
    let outcome = accesses.on_protected_access(&mut vcpu, at);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert_eq!((vcpu.regs.rax, vcpu.regs.rip), (5, at.0 + 3));
}

#[test]
fn write_to_a_hidden_page_waits_for_a_look_at_the_file() {
    let (kernel, at) = one("f", &STORE);
    let rig = Rig::new(&kernel, &[]);
    hide(&rig, DATA);
    let mut vcpu = vcpu_at(at);
    (vcpu.regs.rdi, vcpu.regs.rax) = (DATA, 9);
    let accesses = &rig.engine.protected_accesses;
    let outcome = accesses.on_protected_access(&mut vcpu, at);
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
    assert_eq!((rig.word(DATA), vcpu.regs.rip), (0, at.0));
    // No file has the page: the guest may write to it.
    let never = |_: &mut FakeVcpu, _: text::To<'_>| panic!("nothing is left to execute");
    let outcome = accesses.on_paused_protected_access(&mut vcpu, &rig.paused, at, never);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert_eq!(protected(&rig), []);
    assert!(rig.engine.uprobes.hidden.table.load().is_empty());
}

#[test]
fn hidden_and_watched_pages_are_protected_together() {
    let (mut kernel, _) = one("f", &PLAIN);
    let data = gpa(kernel.variable("counter", 0)) & !0xfff;
    let rig = Rig::new(&kernel, &["watch:counter:8"]);
    assert_eq!(rig.states(), [ProbeState::Armed]);
    hide(&rig, DATA);
    let mut expected = [(DATA, Protection::Accesses), (data, Protection::Writes)];
    expected.sort_unstable_by_key(|(page, _)| *page);
    assert_eq!(protected(&rig), expected);
    rig.engine.set_armed(&rig.paused, false).expect("disarmed");
    assert_eq!(protected(&rig), [(DATA, Protection::Accesses)]);
}
