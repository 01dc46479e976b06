//! Filters and aggregates at hits.

use std::sync::{Arc, Mutex};

use address::Gva;
use events::Hex;
use manifest::program::{Aggregate, AggregateResult};
use manifest::{Action, Due, Injection, ProbeConfig, ProbeSpec};
use text::Ran;
use text::testing::FakeVcpu;

use super::{ABILITIES, DATA, PLAIN, RDTSC, Rig, STACK, TEXT_ENTRY, TEXT_GPA, memory_of, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::{EngineAction, RegisterError};
use crate::handler::{Handler, HitContext, PreOutcome};
use crate::resolve::ResolveProblem;
use crate::resolve::synthetic::SyntheticKernel;

fn new(
    spec: &str,
    filter: Option<&str>,
    action: impl Into<EngineAction>,
) -> ProbeConfig<EngineAction> {
    let probe = ProbeConfig {
        filter: filter.map(|filter| filter.parse().expect(filter)),
        ..ProbeConfig::from(spec.parse::<ProbeSpec>().expect(spec))
    };
    probe.with_action(action.into())
}

#[test]
fn filter_and_aggregate_of_a_configuration_are_registered() {
    let spec: ProbeSpec = "kprobe:f".parse().expect("a probe");
    let lhist: Aggregate = "lhist(arg2, 0, 8192, 1024)".parse().expect("an aggregate");
    let config = ProbeConfig {
        filter: "arg2 > 4096 && cpu == 1".parse().ok(),
        action: Action::Aggregate(lhist),
        ..ProbeConfig::from(spec)
    };
    let (rig, _) = rig(&PLAIN, &[]);
    rig.engine
        .register(&rig.paused, std::slice::from_ref(&config))
        .expect("registered");
    let status = rig.engine.inventory().statuses().remove(0);
    assert_eq!(
        (status.aggregate, status.action),
        (Some(lhist.to_string()), None)
    );
    let filter = config.filter.map(|filter| filter.to_string());
    assert_eq!(status.summary.filter, filter);
}

fn aggregate(text: &str) -> Action {
    Action::Aggregate(text.parse::<Aggregate>().expect(text))
}

/// A kernel whose function `f` has `code`, with `probes`.
fn rig(code: &[u8], probes: &[ProbeConfig<EngineAction>]) -> (Rig, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("f", code);
    kernel.function("g", &PLAIN);
    (with(&kernel, probes), at)
}

fn with(kernel: &SyntheticKernel, probes: &[ProbeConfig<EngineAction>]) -> Rig {
    let memory = memory_of(kernel, TEXT_GPA, TEXT_ENTRY);
    let rig = Rig::unarmed(memory, kernel, &[], ABILITIES);
    rig.engine.arm_loaded(&rig.paused).expect("armed");
    rig.engine
        .register(&rig.paused, probes)
        .expect("registered");
    rig
}

/// A call of the function at `at`, the arguments in `rdi` and `rdx`.
fn call(rig: &Rig, at: Gva, arg0: u64, arg2: u64) -> FakeVcpu {
    let mut vcpu = vcpu(at);
    vcpu.regs.rdi = arg0;
    vcpu.regs.rdx = arg2;
    assert_eq!(
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
        HitOutcome::Resume
    );
    vcpu
}

#[test]
fn rejected_execution_is_no_hit_and_is_stepped_over() {
    let filter = Some("arg0 == 5 && (int64)arg2 < 0");
    let (rig, at) = rig(
        &PLAIN,
        &[
            new("kprobe:f", filter, Action::Trace),
            new("kprobe:f", None, Action::Count),
        ],
    );
    for (arg0, arg2) in [(5, u64::MAX), (5, 1), (4, u64::MAX)] {
        let vcpu = call(&rig, at, arg0, arg2);
        assert_eq!(vcpu.regs.rip, at.0 + 1, "past the push");
    }
    let told = rig.hits();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].args[0], told[0].args[2]), (Hex(5), Hex(u64::MAX)));
    let filtered = rig.probe(0);
    assert_eq!((filtered.hits, filtered.exits), (1, 3));
    assert_eq!(filtered.filter.as_deref(), filter);
    assert_eq!(rig.probe(1).hits, 3, "the probe beside it has no filter");
}

#[test]
fn aggregates_add_values_and_emit_no_events() {
    let (rig, at) = rig(
        &PLAIN,
        &[
            new("kprobe:f", None, aggregate("sum(arg2)")),
            new("kprobe:f", Some("arg0 != 1"), aggregate("max(arg2)")),
            new("kprobe:f", None, aggregate("hist(arg2)")),
        ],
    );
    for (arg0, arg2) in [(0, 5), (1, 100), (2, 7)] {
        call(&rig, at, arg0, arg2);
    }
    assert!(rig.hits().is_empty());
    let results = [0, 1, 2].map(|probe| rig.probe(probe).result.expect("a result"));
    let of = "arg2".to_owned();
    let [sum, max, hist] = results;
    assert_eq!(
        sum,
        AggregateResult::Sum {
            of: of.clone(),
            count: 3,
            value: 112
        }
    );
    assert_eq!(
        max,
        AggregateResult::Max {
            of,
            count: 2,
            value: Some(7)
        }
    );
    let AggregateResult::Hist { buckets, .. } = hist else {
        panic!("{hist:?}");
    };
    let counts: Vec<_> = buckets.iter().map(|it| (it.min, it.count)).collect();
    assert_eq!(counts, [(4, 2), (8, 0), (16, 0), (32, 0), (64, 1)]);
    assert_eq!([0, 1, 2].map(|probe| rig.probe(probe).hits), [3, 2, 3]);
}

#[test]
fn each_match_of_a_pattern_has_a_result_of_its_own() {
    let mut kernel = SyntheticKernel::new();
    let at = [
        kernel.function("f_a", &PLAIN),
        kernel.function("f_b", &PLAIN),
    ];
    let rig = with(&kernel, &[new("kprobe:f_*", None, aggregate("sum(arg0)"))]);
    call(&rig, at[0], 3, 0);
    call(&rig, at[1], 4, 0);
    let sums = [0, 1].map(|probe| rig.probe(probe).result.map(|it| it.to_string()));
    assert_eq!(
        sums,
        ["sum(arg0): 3", "sum(arg0): 4"].map(|it| Some(it.to_owned()))
    );
}

/// Where a processor keeps its number and its task, as a kernel up to 6.1 has them.
const NUMBER: u64 = 0x100;
const TASK: u64 = 0x108;

fn with_processors(probe: ProbeConfig<EngineAction>) -> (Rig, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("f", &PLAIN);
    kernel.symbol("cpu_number", Gva(NUMBER));
    kernel.symbol("current_task", Gva(TASK));
    (with(&kernel, &[probe]), at)
}

#[test]
fn the_processor_is_the_one_that_the_guest_says() {
    let (rig, at) = with_processors(new("kprobe:f", Some("cpu == 3"), Action::Count));
    for (gs, number) in [(DATA, 3_u32), (DATA + 0x1000, 0)] {
        rig.memory.put(gs + NUMBER, &number.to_le_bytes());
        // The bytes behind the number are not part of the number.
        rig.memory.put(gs + NUMBER + 4, &[0xff; 4]);
    }
    let hit = |gs: u64, index: usize| {
        let mut vcpu = vcpu(at);
        vcpu.index = index;
        vcpu.state.system.segments.gs.base = gs;
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
        rig.probe(0).hits
    };
    assert_eq!(hit(DATA, 0), 1);
    assert_eq!(hit(DATA + 0x1000, 3), 1, "that processor is 0");
    // The address is not mapped: the vCPU's own number is used.
    assert_eq!(hit(0x7000_0000_0000, 3), 2);
    assert_eq!(hit(0x7000_0000_0000, 0), 2);
}

#[test]
fn the_task_is_the_one_that_the_processor_runs() {
    let filter = Some("curtask == 0xffff888003d58000");
    let (rig, at) = with_processors(new("kprobe:f", filter, Action::Count));
    let hit = |task: u64| {
        rig.memory.put(DATA + TASK, &task.to_le_bytes());
        let mut vcpu = vcpu(at);
        vcpu.state.system.segments.gs.base = DATA;
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
        rig.probe(0).hits
    };
    assert_eq!(hit(0xffff_8880_03d5_8000), 1);
    assert_eq!(hit(0xffff_8880_03d5_9000), 1);
}

#[test]
fn kernel_without_the_symbols_has_no_task_and_the_vmm_s_cpu_numbers() {
    let (rig, at) = rig(
        &PLAIN,
        &[
            new("kprobe:f", Some("cpu == 0"), Action::Count),
            new("kprobe:f", Some("curtask == 0"), Action::Count),
        ],
    );
    call(&rig, at, 0, 0);
    assert_eq!([0, 1].map(|probe| rig.probe(probe).hits), [1, 1]);
}

#[derive(Default)]
struct Called(Mutex<Vec<&'static str>>);

impl Handler for Called {
    fn pre(&self, _: &mut HitContext<'_>) -> PreOutcome {
        self.0.lock().expect("lock").push("pre");
        PreOutcome::Continue
    }

    fn post(&self, _: &mut HitContext<'_>) {
        self.0.lock().expect("lock").push("post");
    }
}

#[test]
fn rejected_execution_calls_neither_pre_nor_post_handler() {
    for code in [&PLAIN[..], &RDTSC] {
        let called = Arc::new(Called::default());
        let action = EngineAction::Handle(Arc::clone(&called) as Arc<dyn Handler>);
        let (rig, at) = rig(code, &[new("kprobe:f", Some("arg0 == 5"), action)]);
        for arg0 in [4, 5, 6] {
            let mut vcpu = vcpu(at);
            vcpu.regs.rdi = arg0;
            if rig.engine.hits.on_hit(&mut vcpu, at).expect("handled") == HitOutcome::NeedsPause {
                let next = at.wrapping_add(2);
                let passed =
                    rig.engine
                        .paused_hits
                        .on_paused_hit(&mut vcpu, &rig.paused, at, |vcpu, _| {
                            vcpu.regs.rip = next.0;
                            // Behind the instruction, the condition would hold for 4, and no longer for 5.
                            vcpu.regs.rdi ^= 1;
                            Ok(Ran::At(next))
                        });
                passed.expect("handled");
            }
        }
        assert_eq!(
            *called.0.lock().expect("lock"),
            ["pre", "post"],
            "{code:x?}"
        );
        assert_eq!(rig.probe(0).hits, 1);
    }
}

#[test]
fn calls_that_are_turned_away_run_and_are_not_counted_for_an_injection() {
    let injection = Injection {
        at: "kprobe:f".parse().expect("a probe"),
        due: Due::OnHit(2),
        value: 9,
        comm: None,
    };
    let (rig, at) = rig(
        &PLAIN,
        &[new(
            "kprobe:f",
            Some("arg0 == 5"),
            EngineAction::Inject(injection),
        )],
    );
    let returns_to = DATA + 0x200;
    let went = [5, 4, 4, 5, 5].map(|arg0| {
        rig.memory.put(STACK, &returns_to.to_le_bytes());
        call(&rig, at, arg0, 0).regs.rip
    });
    let runs = at.0 + 1;
    assert_eq!(went, [runs, runs, runs, returns_to, runs]);
}

/// `f` is called from the first instruction of `g`.
fn returning(probe: ProbeConfig<EngineAction>) -> (Rig, Gva, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("f", &PLAIN);
    let site = kernel.function("g", &PLAIN).wrapping_add(1);
    (with(&kernel, &[probe]), at, site)
}

fn reach(rig: &Rig, at: Gva, rsp: u64, rdi: u64, rax: u64) {
    let mut vcpu = vcpu(at);
    (vcpu.regs.rsp, vcpu.regs.rdi, vcpu.regs.rax) = (rsp, rdi, rax);
    if rig.engine.hits.on_hit(&mut vcpu, at).expect("handled") == HitOutcome::NeedsPause {
        let passed = rig
            .engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("nothing to step"));
        passed.expect("handled");
    }
}

#[test]
fn a_return_probe_chooses_at_the_entry_and_adds_at_the_return() {
    let probe = new("kretprobe:f", Some("arg0 == 5"), aggregate("min(retval)"));
    let (rig, at, site) = returning(probe);
    for (arg0, returned) in [(5_u64, -2_i64), (4, -9), (5, 7)] {
        rig.memory.put(STACK, &site.0.to_le_bytes());
        reach(&rig, at, STACK, arg0, 0);
        reach(&rig, site, STACK + 8, 0, returned.cast_unsigned());
    }
    let probe = rig.probe(0);
    assert_eq!(
        (probe.hits, probe.returns, probe.in_flight),
        (2, Some(2), Some(0))
    );
    let result = probe.result.map(|result| result.to_string());
    assert_eq!(result.as_deref(), Some("min(rax): -2"));
    let status = rig.engine.inventory().statuses().remove(0);
    assert_eq!(status.aggregate.as_deref(), Some("min(rax)"));
}

#[test]
fn an_argument_is_gone_at_the_return() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("f", &PLAIN);
    let rig = with(&kernel, &[]);
    let wrong = [new("kretprobe:f", None, aggregate("sum(arg2)"))];
    let error = rig.engine.register(&rig.paused, &wrong).expect_err("gone");
    let RegisterError::Resolve(error) = error else {
        panic!("{error}");
    };
    assert!(
        matches!(error.problem, ResolveProblem::NotAtReturn(_)),
        "{error}"
    );
    assert!(error.to_string().contains("`arg2` is gone"), "{error}");
}
