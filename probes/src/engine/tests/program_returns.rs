//! Calls of functions in programs, followed to their return.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use address::Gva;
use events::{ProbeId, ProbeSummary, Tier};
use introspect::PagingState;
use text::testing::FakeVcpu;

use super::tasks::{CURRENT, SHELL, TASK, describe_tasks};
use super::{PLAIN, Rig, vcpu};
use crate::engine::uprobes::code_hit::{CodeHit, Leaving};
use crate::engine::uprobes::code_table::CodeSite;
use crate::registry::{Probe, Purpose, ReturnAction, ReturnPurpose};
use crate::resolve::synthetic::SyntheticKernel;

/// The function, by offsets in the file and addresses of the program.
const START: u64 = 0x123;
const END: u64 = 0x160;
/// A part of the function elsewhere in the file.
const COLD: u64 = 0x2000;
const BASE: u64 = 0x40_0000;
/// The stack pointer at the first instruction.
const RSP: u64 = super::STACK;
const OTHER_SPACE: u64 = 0x7000_0000;
const OTHER_TASK: u64 = TASK + 0x1000;

/// A program with a probe at the returns of a function.
struct Program {
    rig: Rig,
    site: CodeSite,
    /// The root of the page tables.
    space: Cell<u64>,
}

impl Program {
    fn new(maxactive: usize, filter: &str) -> Self {
        let mut kernel = SyntheticKernel::new();
        kernel.function("f", &PLAIN);
        describe_tasks(&mut kernel);
        let rig = Rig::new(&kernel, &[]);
        rig.switch_to(SHELL);
        let purpose = Purpose::Return(ReturnPurpose {
            action: ReturnAction::Trace,
            maxactive,
        });
        let name = "uretprobe:/bin/x:f".into();
        let probe = Probe::new(ProbeId(1), name, purpose, None, true);
        let site = CodeSite {
            probe: Arc::new(probe.filtered(filter.parse().ok())),
            offset: START,
            parts: [START..END, COLD..COLD + 0x10].into(),
            symbol: "f+0x0 [/bin/x]".into(),
            operands: None,
        };
        let space = Cell::new(super::ROOT);
        Self { rig, site, space }
    }

    /// The vCPU behind an instruction, and the registers in front of it, of which one is `value`.
    fn about_to_execute(
        &self,
        at: u64,
        leaving: Leaving,
        rsp: u64,
        to: u64,
        value: u64,
    ) -> (FakeVcpu, CodeHit) {
        let mut vcpu = vcpu(Gva(BASE + to));
        vcpu.state.privilege = 3;
        vcpu.state.paging = PagingState::four_level(self.space.get());
        // The per-CPU area of the kernel.
        vcpu.msrs.insert(0xc000_0102, 0);
        let mut regs = vcpu.regs;
        (regs.rip, regs.rsp, regs.rdi) = (BASE + at, rsp, value);
        vcpu.regs.rax = value;
        let hit = CodeHit {
            sites: vec![self.site.clone()],
            counter: None,
            at,
            leaving,
            regs,
            state: None,
        };
        (vcpu, hit)
    }

    fn report(&self, vcpu: &mut FakeVcpu, hit: &CodeHit) {
        let uprobes = &self.rig.engine.uprobes;
        uprobes.report(vcpu, hit, Tier::Emulated).expect("reported");
    }

    /// Executes an instruction, of which a register is `value`.
    fn execute(&self, at: u64, leaving: Leaving, rsp: u64, to: u64, value: u64) {
        let (mut vcpu, hit) = self.about_to_execute(at, leaving, rsp, to, value);
        self.report(&mut vcpu, &hit);
    }

    fn call(&self, rsp: u64) {
        self.call_with(rsp, 0);
    }

    fn call_with(&self, rsp: u64, argument: u64) {
        self.execute(START, Leaving::Never, rsp, START + 1, argument);
    }

    fn ret(&self, rsp: u64, value: u64) {
        self.execute(0x140, Leaving::Return, rsp, 0x900, value);
    }

    fn jump(&self, rsp: u64, to: u64) {
        self.execute(0x140, Leaving::Jump, rsp, to, 0);
    }

    fn switch_to(&self, task: u64) {
        self.rig.memory.put(CURRENT, &task.to_le_bytes());
        // The process of the shell.
        self.rig.memory.put(task + 12, &7_u32.to_le_bytes());
    }

    fn summary(&self) -> ProbeSummary {
        self.site.probe.summary()
    }

    /// The hits, returns and calls in flight.
    fn counts(&self) -> (u64, u64, u64) {
        let summary = self.summary();
        let missed: u64 = summary.missed.values().sum();
        let (returns, in_flight) = (summary.returns.expect("a count"), summary.in_flight);
        let in_flight = in_flight.expect("a count");
        assert_eq!(summary.hits, returns + in_flight + missed, "{summary:?}");
        (summary.hits, returns, in_flight)
    }

    fn missed(&self, why: &str) -> u64 {
        self.summary().missed.get(why).copied().unwrap_or_default()
    }
}

#[test]
fn recursive_calls_of_a_program_return_with_their_own_values() {
    let program = Program::new(256, "");
    program.call(RSP);
    program.call(RSP - 0x20);
    // A `ret` with another stack pointer is not the function's.
    program.ret(RSP - 0x10, 9);
    program.ret(RSP - 0x20, 1);
    program.ret(RSP, 2);
    let returns = program.rig.returns();
    let values: Vec<_> = returns.iter().map(|it| (it.retval.0, it.depth)).collect();
    assert_eq!(values, [(1, 1), (2, 0)]);
    assert_eq!(returns[0].ip.0, BASE + 0x900);
    assert_eq!(&*returns[0].symbol, "f+0x0 [/bin/x]");
    let task = returns[0].task.as_ref().expect("a task");
    assert_eq!((task.pid, &*task.comm), (7, "sh"));
    assert_eq!(program.counts(), (2, 2, 0));
}

#[test]
fn calls_of_two_programs_with_one_stack_pointer_return_apart() {
    let program = Program::new(256, "");
    program.call(RSP);
    program.space.set(OTHER_SPACE);
    // A forked child returns from the parent's call.
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (1, 0, 1));
    program.call(RSP);
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (2, 1, 1));
    program.space.set(super::ROOT);
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (2, 2, 0));
}

#[test]
fn process_with_the_page_tables_of_an_earlier_one_has_no_calls() {
    let program = Program::new(256, "");
    program.call(RSP);
    // The program has executed another file, and a forked child got its page tables.
    program.rig.memory.put(TASK + 12, &9_u32.to_le_bytes());
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (1, 0, 1));
}

#[test]
fn call_that_changes_the_thread_returns() {
    let program = Program::new(256, "");
    program.call(RSP);
    program.switch_to(OTHER_TASK);
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (1, 1, 0));
}

#[test]
fn function_that_jumps_to_another_is_left_without_a_return() {
    let program = Program::new(256, "");
    program.call(RSP);
    program.jump(RSP, 0x150);
    program.jump(RSP, COLD);
    // With a frame, no call is left.
    program.jump(RSP - 8, 0x3000);
    assert_eq!(program.counts(), (1, 0, 1));
    program.jump(RSP, 0x3000);
    assert_eq!(program.missed("tail-call"), 1);
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (1, 0, 0));
}

#[test]
fn return_at_an_exception_is_that_of_the_program() {
    let program = Program::new(256, "");
    program.call(RSP);
    let (mut vcpu, mut hit) = program.about_to_execute(0x140, Leaving::Return, RSP, 0, 7);
    hit.regs.rax = 7;
    program.rig.memory.put(RSP, &0x40_0900_u64.to_le_bytes());
    let state = program.rig.engine.uprobes.program_state(&mut vcpu);
    hit.state = Some(Box::new(state.expect("the registers")));
    // The program single-steps itself.
    vcpu.regs.rip = 0xffff_ffff_8100_0000;
    vcpu.state.privilege = 0;
    program.report(&mut vcpu, &hit);
    let returns = program.rig.returns();
    let [returned] = &returns[..] else {
        panic!("{returns:?}");
    };
    assert_eq!((returned.retval.0, returned.ip.0), (7, 0x40_0900));
    assert_eq!(returned.regs.rsp.0, RSP + 8);
    assert!(returned.task.is_some());
    assert_eq!(program.counts(), (1, 1, 0));
}

#[test]
fn jump_to_the_first_instruction_is_no_call() {
    let program = Program::new(256, "");
    program.call(RSP);
    for _ in 0..3 {
        program.jump(RSP, START);
        program.call(RSP);
    }
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (1, 1, 0));
}

#[test]
fn function_that_is_one_instruction_returns_at_once() {
    let program = Program::new(256, "");
    program.execute(START, Leaving::Return, RSP, 0x900, 3);
    assert_eq!(program.counts(), (1, 1, 0));
    program.execute(START, Leaving::Jump, RSP, 0x900, 3);
    assert_eq!(program.counts(), (2, 1, 0));
}

#[test]
fn function_within_another_returns_with_it() {
    let mut program = Program::new(256, "");
    program.call(RSP);
    let inner = CodeSite {
        offset: 0x140,
        parts: Arc::new([Range {
            start: 0x140,
            end: END,
        }]),
        ..program.site.clone()
    };
    let outer = std::mem::replace(&mut program.site, inner);
    program.ret(RSP, 1);
    program.site = outer;
    program.ret(RSP, 1);
    assert_eq!(program.counts(), (2, 2, 0));
}

#[test]
fn call_that_was_left_unseen_is_missed_at_the_next() {
    let program = Program::new(256, "");
    program.call(RSP);
    program.call(RSP);
    assert_eq!(program.missed("left-unseen"), 1);
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (2, 1, 0));
}

#[test]
fn return_of_a_rejected_call_is_not_that_of_an_earlier_one() {
    let program = Program::new(256, "rdi == 5");
    program.call_with(RSP, 5);
    program.call_with(RSP, 6);
    program.ret(RSP, 0);
    assert!(program.rig.returns().is_empty());
    assert_eq!(program.missed("left-unseen"), 1);
    assert_eq!(program.counts(), (1, 0, 0));
}

#[test]
fn calls_beyond_the_maximum_are_missed() {
    let program = Program::new(1, "");
    program.call(RSP);
    program.call(RSP - 0x20);
    program.ret(RSP - 0x20, 0);
    program.ret(RSP, 0);
    assert_eq!(program.missed("maxactive"), 1);
    assert_eq!(program.counts(), (2, 1, 0));
}

#[test]
fn calls_left_unseen_make_room_for_one_further_up_the_stack() {
    let program = Program::new(2, "");
    program.call(RSP - 0x20);
    program.call(RSP - 0x40);
    program.call(RSP);
    assert_eq!(program.missed("left-unseen"), 2);
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (3, 1, 0));
}

#[test]
fn calls_of_a_task_that_ends_are_abandoned() {
    let program = Program::new(256, "");
    program.call(RSP);
    program.switch_to(OTHER_TASK);
    program.call(RSP - 0x1000);
    let mut vcpu = vcpu(Gva(0xffff_ffff_8100_0000));
    let ended = program.rig.engine.returns.end_task(&mut vcpu);
    ended.expect("ended");
    assert_eq!(program.missed("abandoned"), 1);
    assert_eq!(program.counts(), (2, 0, 1));
    program.switch_to(TASK);
    program.ret(RSP, 0);
    assert_eq!(program.counts(), (2, 1, 0));
}

#[test]
fn calls_of_a_disabled_probe_are_disarmed() {
    let program = Program::new(256, "");
    program.call(RSP);
    let probes = [Arc::clone(&program.site.probe)];
    program.rig.engine.returns.forget_calls(&probes);
    program.ret(RSP, 0);
    assert_eq!(program.missed("disarmed"), 1);
    assert_eq!(program.counts(), (1, 0, 0));
}
