//! Hidden pages of programs: what vCPUs execute, read and write there.

use std::sync::Arc;

use address::{Gpa, Gva};
use events::{ProbeId, ProbeState, Tier};
use inspect::FileId;
use introspect::insn::decode;
use introspect::operand::SizedOperand;
use text::Passed;
use text::testing::FakeVcpu;
use vmm::Protection;

use super::{DATA, PLAIN, Rig, STACK, gpa, one, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::uprobes::code_hit::{CodeHit, Leaving};
use crate::engine::uprobes::code_table::{CodePage, CodeSite, CodeTable, PageCode};
use crate::engine::uprobes::mark_counter::RaisedCounter;
use crate::engine::uprobes::mark_values::MarkParam;
use crate::registry::{Missed, Probe, Purpose};

/// `mov [rdi], rax; ret`
const STORE: [u8; 4] = [0x48, 0x89, 0x07, 0xc3];
/// `mov rax, [rdi]; ret`
const LOAD: [u8; 4] = [0x48, 0x8b, 0x07, 0xc3];
/// The 64-bit code segment that makes the vCPU's instructions decodable.
const LONG_MODE: u16 = 1 << 13;

/// Hides the page with the byte at `at`, which has no probe.
fn hide(rig: &Rig, at: u64) {
    hide_with(rig, at, Vec::new());
}

/// Hides the page with the byte at `at`, which has probes.
fn hide_with(rig: &Rig, at: u64, sites: Vec<CodeSite>) {
    let mut table = CodeTable::default();
    let code = PageCode {
        sites,
        ..PageCode::default()
    };
    let page = CodePage::new(FileId::default(), 0, code, false);
    table.insert(Gpa(at).page(), page);
    let uprobes = &rig.engine.uprobes;
    let hidden = uprobes.protections.hide(&rig.paused, table.addresses());
    hidden.expect("hidden");
    uprobes.hidden.table.store(table.into());
}

pub(super) fn protected(rig: &Rig) -> Vec<(u64, Protection)> {
    let pages = rig.paused.protected.lock().expect("lock");
    pages.iter().map(|(page, of)| (page.0, *of)).collect()
}

/// A probe in the program `/bin/x`.
fn site(purpose: Purpose, filter: &str) -> CodeSite {
    let probe = Probe::new(ProbeId(1), "uprobe:/bin/x:f".into(), purpose, None, true);
    CodeSite {
        probe: Arc::new(probe.filtered(filter.parse().ok())),
        offset: 0x123,
        parts: Arc::default(),
        symbol: "f+0x0 [/bin/x]".into(),
        operands: None,
    }
}

/// Reports that a vCPU in a program has executed the instruction of `sites`, in one exit. Returns the requests to the vCPU.
fn report(rig: &Rig, sites: &[CodeSite]) -> usize {
    let mut vcpu = vcpu_at(Gva(0x40_0123));
    vcpu.state.privilege = 3;
    vcpu.msrs.insert(0xc000_0102, DATA);
    let mut regs = vcpu.regs;
    regs.rdi = 5;
    let hit = CodeHit {
        sites: sites.to_vec(),
        counter: None,
        at: 0x123,
        leaving: Leaving::Never,
        regs,
        state: None,
    };
    let before = vcpu.requests.made();
    let reported = rig.engine.uprobes.report(&mut vcpu, &hit, Tier::Emulated);
    reported.expect("reported");
    vcpu.requests.made() - before
}

/// The hits and exits of the probe.
fn counts(site: &CodeSite) -> (u64, u64) {
    let counters = &site.probe.counters;
    (counters.hits(), counters.exits())
}

pub(super) fn vcpu_at(at: Gva) -> FakeVcpu {
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
fn instruction_finds_a_counter_raised_that_memory_has_as_0() {
    // `movzx eax, word [rdi]`
    let (kernel, at) = one("f", &[0x0f, 0xb7, 0x07]);
    let rig = Rig::new(&kernel, &[]);
    hide(&rig, gpa(at));
    let decoded = decode(&[0x0f, 0xb7, 0x07], at).expect("an instruction");
    let read = |held: u16, raised: Option<&RaisedCounter>| {
        rig.memory.put(DATA, &held.to_le_bytes());
        let mut vcpu = vcpu_at(at);
        vcpu.regs.rdi = DATA;
        let passed = rig
            .engine
            .watches
            .pass_after_exit(&mut vcpu, &decoded, raised);
        assert!(matches!(passed, Ok(Passed::Emulated)), "{passed:?}");
        vcpu.regs.rax
    };
    let raised = RaisedCounter::new(Gpa(DATA));
    assert_eq!((read(0, None), read(0, Some(&raised))), (0, 1));
    assert!(raised.was_read());
    assert_eq!(read(5, Some(&raised)), 5);
    let elsewhere = RaisedCounter::new(Gpa(DATA + 2));
    assert_eq!(
        (read(0, Some(&elsewhere)), elsewhere.was_read()),
        (0, false)
    );
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

#[test]
fn hit_of_a_program_has_its_registers_and_the_name_of_the_instruction() {
    let (kernel, _) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    let site = site(Purpose::Trace, "");
    report(&rig, std::slice::from_ref(&site));
    let hits = rig.hits();
    let [hit] = &hits[..] else {
        panic!("{hits:?}");
    };
    assert_eq!((hit.ip.0, &*hit.symbol), (0x40_0123, "f+0x0 [/bin/x]"));
    assert_eq!((hit.args[0].0, &*hit.probe), (5, "uprobe:/bin/x:f"));
    // The exit was counted when the vCPU reached the page.
    assert_eq!(counts(&site), (1, 0));
}

#[test]
fn hit_of_a_mark_has_the_values_of_the_mark() {
    let (kernel, in_kernel) = one("f", &PLAIN);
    let operand = |text: String| Some(text.parse::<SizedOperand>().expect("an operand"));
    let operands = [
        operand("8@%rdi".to_owned()),
        operand(format!("-4@{}(%rdi)", DATA - 5)),
        operand("2@$-1".to_owned()),
        None,
        // Nothing is mapped there.
        operand(format!("8@{}()", 0x7000_0000_0000_u64)),
        operand(format!("4@{DATA}()")),
        // A program cannot read the kernel.
        operand(format!("8@{}()", in_kernel.0)),
    ];
    let marked = |filter: &str| CodeSite {
        symbol: "a:b [/bin/x]".into(),
        operands: Some(MarkParam::all_of(&operands)),
        ..site(Purpose::Trace, filter)
    };
    let rig = Rig::new(&kernel, &[]);
    rig.memory.put(DATA, &(-3_i32).to_le_bytes());
    let sites = [
        marked("arg1 == -3"),
        marked("arg1 == 3"),
        marked("arg3 == 0"),
        marked("arg4 == 0"),
    ];
    report(&rig, &sites);
    let hits_of = |site: &CodeSite| site.probe.counters.hits();
    assert_eq!(sites.each_ref().map(hits_of), [1, 0, 0, 0]);
    let missed = |site: &CodeSite| site.probe.counters.missed_for(Missed::UnknownValue);
    assert_eq!(sites.each_ref().map(missed), [0, 0, 1, 1]);
    let hits = rig.hits();
    let [hit] = &hits[..] else {
        panic!("{hits:?}");
    };
    assert_eq!(&*hit.symbol, "a:b [/bin/x]");
    let params: Vec<String> = hit
        .params
        .iter()
        .flatten()
        .map(|param| format!("{} {} {:?}", param.name, param.typed.ty, param.typed.value))
        .collect();
    assert_eq!(
        params,
        [
            "arg0 u64 Some(Integer(5))",
            "arg1 s32 Some(Integer(-3))",
            "arg2 u16 Some(Integer(65535))",
            "arg3 unknown None",
            "arg4 u64 None",
            "arg5 u32 Some(Integer(4294967293))",
            "arg6 u64 None",
        ]
    );
    let arguments = hit.args.map(|argument| argument.0);
    let unsigned = (-3_i64).cast_unsigned();
    assert_eq!(arguments, [5, unsigned, 0xffff, 0, 0, 0xffff_fffd]);
}

#[test]
fn mark_without_operands_has_no_values() {
    let (kernel, _) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    let marked = |filter: &str| CodeSite {
        operands: Some(Arc::default()),
        ..site(Purpose::Trace, filter)
    };
    // The register is not a value of the mark.
    let sites = [marked(""), marked("arg0 == 5")];
    report(&rig, &sites);
    let hits = rig.hits();
    assert_eq!(
        hits.iter()
            .map(|hit| hit.params.as_deref())
            .collect::<Vec<_>>(),
        [Some(&[][..])]
    );
    assert_eq!(hits[0].args.map(|argument| argument.0), [0; 6]);
    let counters = &sites[1].probe.counters;
    assert_eq!(counters.hits(), 0);
    assert_eq!(counters.missed_for(Missed::UnknownValue), 1);
}

#[test]
fn count_in_a_program_asks_the_vcpu_for_nothing() {
    let (kernel, _) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    let sites = [site(Purpose::Count, ""), site(Purpose::Count, "")];
    assert_eq!(report(&rig, &sites), 0);
    assert_eq!(sites.each_ref().map(counts), [(1, 0), (1, 0)]);
    assert_eq!(rig.hits(), []);
}

#[test]
fn rejected_execution_in_a_program_counts_one_exit() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    let sites = [
        site(Purpose::Trace, "rdi == 5"),
        site(Purpose::Trace, "rdi == 6"),
    ];
    hide_with(&rig, gpa(at), sites.to_vec());
    rig.engine.uprobes.count_exit(Gpa(gpa(at)));
    report(&rig, &sites);
    assert_eq!(sites.each_ref().map(counts), [(1, 1), (0, 1)]);
    assert_eq!(rig.hits().len(), 1);
}

#[test]
fn instruction_on_a_hidden_page_that_kvm_cannot_emulate_is_emulated() {
    let (kernel, at) = one("f", &STORE);
    let rig = Rig::new(&kernel, &[]);
    let mut vcpu = vcpu_at(at);
    (vcpu.regs.rdi, vcpu.regs.rax) = (DATA, 9);
    let accesses = &rig.engine.protected_accesses;
    let outcome = accesses.on_emulation_failure(&mut vcpu);
    assert_eq!(outcome.expect("looked at"), HitOutcome::NotOurs);
    let site = site(Purpose::Count, "");
    hide_with(&rig, gpa(at), vec![site.clone()]);
    let outcome = accesses.on_emulation_failure(&mut vcpu);
    assert_eq!(outcome.expect("emulated"), HitOutcome::Resume);
    assert_eq!((rig.word(DATA), vcpu.regs.rip), (9, at.0 + 3));
    // No file has the page: the execution is no hit.
    assert_eq!(counts(&site), (0, 1));
}

#[test]
fn table_hides_a_page_only_as_the_page_of_its_file() {
    let expected = [(FileId::default(), 3)];
    let mut table = CodeTable::expecting(expected.into_iter());
    let page = CodePage::new(FileId::default(), 3, PageCode::default(), true);
    table.insert(Gpa(DATA), page);
    assert_eq!(table.expected().collect::<Vec<_>>(), expected);
    let hides = |gpa, number| table.hides(Gpa(gpa), FileId::default(), number);
    assert!(hides(DATA, 3) && hides(DATA + 8, 3));
    assert!(!hides(DATA, 4) && !hides(DATA + 0x1000, 3));
}

/// Programs may access the first two megabytes, by their own mapping; the kernel's mapping at `TEXT` is for ring 0 only.
fn program_at(rig: &Rig, at: u64) -> FakeVcpu {
    use super::{LARGE_PAGE, LOWER, LOWER_DIRECTORY, ROOT, TABLE};
    let put = |at: u64, value: u64| rig.memory.put(at, &value.to_le_bytes());
    put(ROOT, LOWER | TABLE | 4);
    put(LOWER, LOWER_DIRECTORY | TABLE | 4);
    put(LOWER_DIRECTORY, LARGE_PAGE | 4);
    let mut vcpu = vcpu_at(Gva(at));
    vcpu.state.privilege = 3;
    vcpu.sregs.ss.dpl = 3;
    vcpu
}

#[test]
fn program_that_jumps_to_the_kernels_alias_of_a_hidden_page_executes_nothing() {
    // jmp rdi
    let (kernel, at) = one("f", &[0xff, 0xe7]);
    let rig = Rig::new(&kernel, &[]);
    hide(&rig, gpa(at));
    let page = gpa(at) & !0xfff;
    // The page ends with the opcode of `mov rax, imm64`; the next page of RAM is the kernel's.
    rig.memory.put(page + 0xffe, &[0x48, 0xb8]);
    rig.memory
        .put(page + 0x1000, &0x5ec3_5ec3_5ec3_5ec3_u64.to_le_bytes());
    let mut vcpu = program_at(&rig, gpa(at));
    // The kernel's alias of the page.
    vcpu.regs.rdi = (at.0 & !0xfff) + 0xffe;
    let accesses = &rig.engine.protected_accesses;
    let outcome = accesses.on_protected_access(&mut vcpu, Gva(gpa(at)));
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_ne!(
        vcpu.regs.rax, 0x5ec3_5ec3_5ec3_5ec3,
        "ring 3 has read a supervisor page"
    );
}

#[test]
fn return_of_a_program_into_the_kernel_overwrites_no_byte_there() {
    use super::super::hits::outcome::HitOutcome as Outcome;
    let mut kernel = crate::resolve::synthetic::SyntheticKernel::new();
    // ret
    let at = kernel.function("f", &[0xc3]);
    kernel.variable("counter", 0);
    let target = kernel.variable("other", 0x1111_1111_1111_1111);
    let rig = Rig::new(&kernel, &["watch:counter:8"]);
    let mut vcpu = program_at(&rig, gpa(at));
    // The program single-steps itself: the hardware executes.
    vcpu.regs.rflags |= 1 << 8;
    rig.memory.put(STACK, &target.0.to_le_bytes());
    let accesses = &rig.engine.protected_accesses;
    let at = Gva(gpa(at));
    let mut seen = None;
    let outcome = accesses.on_paused_protected_access(&mut vcpu, &rig.paused, at, |_, to| {
        seen = Some((to.stops().contains(&target), rig.byte(gpa(target))));
        Ok(text::Ran::Nowhere)
    });
    assert_eq!(outcome.expect("handled"), Outcome::Resume);
    assert_eq!(
        seen.map(|it| it.1),
        Some(0x11),
        "a byte of the kernel's data, chosen by ring 3"
    );
}

/// The executions of the probe that may have been missed.
fn missed(site: &CodeSite) -> u64 {
    site.probe.counters.missed_for(Missed::Unprotected)
}

#[test]
fn kernel_that_reads_the_beginning_of_a_hidden_page_with_an_unreadable_stack_is_a_miss() {
    let (kernel, at) = one("f", &LOAD);
    let page = DATA & !0xfff;
    for (from, misses) in [(page, 1), (page + 8, 0)] {
        let rig = Rig::new(&kernel, &[]);
        let site = site(Purpose::Count, "");
        hide_with(&rig, DATA, vec![site.clone()]);
        // The fake kernel has no rules for its stacks.
        let mut vcpu = vcpu_at(at);
        vcpu.regs.rdi = from;
        let accesses = &rig.engine.protected_accesses;
        let outcome = accesses.on_protected_access(&mut vcpu, at);
        assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
        assert_eq!(missed(&site), misses, "{from:#x}");
    }
}

/// A program at `code`, which is on a hidden page with a probe, single-steps itself: the hardware executes, and `run` is its end.
/// Returns the hits and misses.
fn step(code: &[u8], run: impl Fn(&mut FakeVcpu) -> text::Ran) -> (u64, u64) {
    let mut kernel = crate::resolve::synthetic::SyntheticKernel::new();
    let at = gpa(kernel.function("f", code));
    kernel.variable("counter", 0);
    let rig = Rig::new(&kernel, &["watch:counter:8"]);
    let mut vcpu = program_at(&rig, at);
    vcpu.regs.rflags |= 1 << 8;
    let watch = rig.engine.probes.list.load()[0].clone();
    let accesses = &rig.engine.protected_accesses;
    let run = |vcpu: &mut FakeVcpu, _: text::To<'_>| Ok(run(vcpu));
    let outcome = accesses.on_paused_protected_access(&mut vcpu, &rig.paused, Gva(at), run);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    let counters = &watch.counters;
    (counters.hits(), counters.missed_for(Missed::Unprotected))
}

#[test]
fn instruction_that_the_hardware_has_not_finished_is_no_miss() {
    // rep stosb
    assert_eq!(step(&[0xf3, 0xaa], |_| text::Ran::Nowhere), (0, 0));
    // mov ss, eax: the vCPU may have gone on, and come back.
    assert_eq!(step(&[0x8e, 0xd0], |_| text::Ran::Nowhere), (0, 1));
    // The vCPU is elsewhere.
    let elsewhere = |vcpu: &mut FakeVcpu| {
        vcpu.regs.rip += 0x100;
        text::Ran::Nowhere
    };
    assert_eq!(step(&[0xf3, 0xaa], elsewhere), (0, 1));
}

#[test]
fn program_that_writes_ss_may_execute_more_than_one_instruction() {
    let next = |vcpu: &mut FakeVcpu| {
        vcpu.regs.rip += 2;
        text::Ran::At(Gva(vcpu.regs.rip))
    };
    // mov ss, eax; mov ds, eax
    assert_eq!(step(&[0x8e, 0xd0], next), (0, 1));
    assert_eq!(step(&[0x8e, 0xd8], next), (0, 0));
}

#[test]
fn stop_at_the_instruction_itself_fires_behind_the_instruction() {
    // loop $
    let (hits, missed) = step(&[0xe2, 0xfe], |vcpu| {
        // The resume flag holds the debug register back once.
        assert_ne!(vcpu.regs.rflags & (1 << 16), 0);
        text::Ran::At(Gva(vcpu.regs.rip))
    });
    assert_eq!((hits, missed), (0, 0));
    step(&[0xaa], |vcpu| {
        assert_eq!(vcpu.regs.rflags & (1 << 16), 0);
        vcpu.regs.rip += 1;
        text::Ran::At(Gva(vcpu.regs.rip))
    });
}

#[test]
fn written_pages_are_those_of_the_vcpu() {
    let (kernel, at) = one("f", &STORE);
    let rig = Rig::new(&kernel, &[]);
    hide(&rig, DATA);
    let mut writer = vcpu_at(at);
    (writer.regs.rdi, writer.regs.rax) = (DATA, 9);
    let accesses = &rig.engine.protected_accesses;
    let outcome = accesses.on_protected_access(&mut writer, at);
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
    let hidden = &rig.engine.uprobes.hidden;
    let other = writer.index + 1;
    assert!(hidden.take_written(other).is_empty());
    let page = Gpa(DATA).page();
    assert!(hidden.take_written(writer.index).contains(&page));
    assert!(hidden.take_written(writer.index).is_empty());
}

#[test]
fn hardware_raises_the_fault_of_a_program() {
    let (kernel, at) = one("f", &LOAD);
    let rig = Rig::new(&kernel, &[]);
    hide(&rig, gpa(at));
    let mut vcpu = program_at(&rig, gpa(at));
    // The program may access its first two megabytes.
    vcpu.regs.rdi = 0x40_0000;
    let accesses = &rig.engine.protected_accesses;
    let outcome = accesses.on_protected_access(&mut vcpu, Gva(gpa(at)));
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
    assert!(vcpu.injected.is_empty());
}
