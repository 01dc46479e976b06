//! Jumps that come and go at random, with tasks that are interrupted anywhere and vCPUs that stand anywhere.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Call(usize, u64),
    /// A task begins a call and is interrupted after so many instructions, or its vCPU stands there.
    Begin(usize, u64, usize, bool),
    /// The task that was stopped first goes on.
    Finish,
    Optimise(bool),
    /// A probe that tells its hits, beside the one that is there; or away again.
    Beside(usize, bool),
    Enable(usize, bool),
    /// The knob, off and on again, with no time between.
    Knob,
    /// Off, and on again when a task has gone on.
    KnobAndFinish,
    /// The guest puts another value into a `mov`.
    Write(usize, u8),
}

const FUNCTIONS: usize = 4;

/// Every other one has no room for a jump where it begins: `push rbp; mov eax, 1; lea eax, [rax + rdi]; pop rbp; ret`
fn code(f: usize) -> Vec<u8> {
    if is_short(f) {
        let [body @ .., ret] = ROOMY;
        [&[0x55][..], &body, &[0x5d, ret]].concat()
    } else {
        ROOMY.to_vec()
    }
}

const fn is_short(f: usize) -> bool {
    f % 2 == 1
}

/// Where the constant is in the function.
fn constant_at(f: usize) -> u64 {
    1 + u64::from(is_short(f))
}

fn op() -> impl Strategy<Value = Op> {
    let function = 0..FUNCTIONS;
    prop_oneof![
        6 => (function.clone(), 0..9_u64).prop_map(|(f, n)| Op::Call(f, n)),
        4 => (function.clone(), 0..9_u64, 0..70_usize, any::<bool>())
            .prop_map(|(f, n, steps, stands)| Op::Begin(f, n, steps, stands)),
        4 => Just(Op::Finish),
        3 => any::<bool>().prop_map(Op::Optimise),
        2 => (function.clone(), any::<bool>()).prop_map(|(f, on)| Op::Beside(f, on)),
        2 => (function.clone(), any::<bool>()).prop_map(|(f, on)| Op::Enable(f, on)),
        2 => Just(Op::Knob),
        1 => Just(Op::KnobAndFinish),
        2 => (function, any::<u8>()).prop_map(|(f, value)| Op::Write(f, value)),
    ]
}

/// The first ones have probes that count, the others such as tell their hits.
fn probe(f: usize) -> NewProbe {
    let name = format!("roomy{f}");
    if f < FUNCTIONS / 2 {
        count(&name)
    } else {
        new(&name)
    }
}

/// A task that has been stopped: its registers, its frame if it was interrupted, what it will return, and of which
/// function.
struct Task {
    vcpu: FakeVcpu,
    frame: Option<u64>,
    stack: u64,
    returns: u64,
    function: usize,
}

impl Task {
    fn finish(self, rig: &Rig) {
        let Self {
            mut vcpu, frame, ..
        } = self;
        if let Some(frame) = frame {
            return_from(rig, frame, &mut vcpu);
        }
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        assert_eq!((vcpu.regs.rax, vcpu.regs.rflags), (self.returns, FLAGS));
    }
}

/// Every plant goes, while these tasks stand where they are.
fn knob_off(rig: &Rig, tasks: &[Task]) {
    let stands = tasks.iter().filter(|task| task.frame.is_none());
    rig.stands(&stands.map(|task| &task.vcpu).collect::<Vec<_>>());
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    rig.stands(&[]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Jumps come and go: the guest computes what it would without, and each call is counted once while its probe is
    /// enabled.
    #[test]
    fn optimising_changes_neither_results_nor_counts(ops in prop::collection::vec(op(), 1..60)) {
        let mut kernel = SyntheticKernel::new();
        let at: Vec<Gva> = (0..FUNCTIONS)
            .map(|n| kernel.function(&format!("roomy{n}"), &code(n)))
            .collect();
        int3::handler(&mut kernel);
        kernel.function("cpu_number", &[0; 4]);
        let rig = Rig::with(&kernel, &[], ABILITIES);
        int3::table(&rig);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let probes: Vec<_> = (0..FUNCTIONS).map(probe).collect();
        let ids = rig.engine.register(&rig.paused, &probes).expect("registered");
        rig.call(at[0], 0);
        rig.call(at[1], 0);
        prop_assert_eq!(rig.shown::<1>(at[0]), [0xe9]);
        prop_assert_eq!(rig.shown::<1>(at[1]), INT3);
        let mut constants = [1_u64; FUNCTIONS];
        let (mut least, mut most) = ([1, 1, 0, 0], [1, 1, 0, 0]);
        let mut enabled = [true; FUNCTIONS];
        let mut beside = [None; FUNCTIONS];
        let mut tasks: Vec<Task> = Vec::new();
        for op in ops.into_iter().chain([Op::Knob]) {
            match op {
                Op::Call(f, n) => {
                    prop_assert_eq!(rig.call(at[f], n), n + constants[f]);
                    least[f] += u64::from(enabled[f]);
                    most[f] += u64::from(enabled[f]);
                }
                Op::Begin(f, n, steps, stands) if tasks.len() < 4 => {
                    let stack = STACK - 0x400 * (1 + tasks.len() as u64);
                    let stack = (0..4)
                        .map(|i| stack - 0x2000 * i)
                        .find(|stack| tasks.iter().all(|task| task.stack.abs_diff(*stack) > 0x200))
                        .expect("a free stack");
                    let mut vcpu = rig.calling(at[f], n, stack);
                    let mut is_there = rig.run(&mut vcpu, steps) == Stepped::On;
                    while is_there && !stands && vcpu.regs.rflags & INTERRUPTS == 0 {
                        is_there = rig.run(&mut vcpu, 1) == Stepped::On;
                    }
                    if is_there {
                        let frame = (!stands).then(|| frame(&rig, &vcpu));
                        let returns = n + constants[f];
                        tasks.push(Task { vcpu, frame, stack, returns, function: f });
                    }
                    least[f] += u64::from(enabled[f]);
                    most[f] += u64::from(enabled[f]);
                }
                Op::Begin(..) => (),
                Op::Finish if tasks.is_empty() => (),
                Op::Finish => tasks.remove(0).finish(&rig),
                Op::Optimise(on) => rig.engine.set_optimising(&rig.paused, on).expect("set"),
                Op::Beside(f, true) if beside[f].is_none() => {
                    let new = [new(&format!("roomy{f}"))];
                    let ids = rig.engine.register(&rig.paused, &new).expect("registered");
                    beside[f] = Some(ids[0]);
                }
                Op::Beside(f, _) => {
                    if let Some(id) = beside[f].take() {
                        rig.engine.unregister(&rig.paused, &[id]).expect("removed");
                    }
                }
                Op::Enable(f, on) => {
                    // A call that is under way may be counted at either side of it.
                    let under_way = tasks.iter().filter(|task| task.function == f).count() as u64;
                    least[f] = least[f].saturating_sub(under_way);
                    most[f] += under_way;
                    rig.engine.set_enabled(&rig.paused, ids[f], on).expect("set");
                    enabled[f] = on;
                }
                Op::Knob => {
                    knob_off(&rig, &tasks);
                    for (f, at) in at.iter().enumerate() {
                        let constant = rig.shown::<1>(at.wrapping_add(constant_at(f)))[0];
                        prop_assert_eq!(u64::from(constant), constants[f]);
                    }
                    prop_assert_eq!(rig.shown::<1>(at[0]), [ROOMY[0]]);
                    rig.engine.set_armed(&rig.paused, true).expect("armed");
                }
                Op::KnobAndFinish => {
                    knob_off(&rig, &tasks);
                    if !tasks.is_empty() {
                        let task = tasks.remove(0);
                        // Who comes to the instruction while nothing is planted is not counted.
                        least[task.function] = least[task.function].saturating_sub(1);
                        task.finish(&rig);
                    }
                    rig.engine.set_armed(&rig.paused, true).expect("armed");
                }
                Op::Write(f, value) => {
                    for task in tasks.drain(..) {
                        task.finish(&rig);
                    }
                    rig.guest_writes(at[f].wrapping_add(constant_at(f)), &[value]);
                    constants[f] = value.into();
                }
            }
        }
        for task in tasks.drain(..) {
            task.finish(&rig);
        }
        let summaries = rig.engine.summaries();
        prop_assert!(rig.notes().is_empty());
        let mut told = [0; FUNCTIONS];
        for hit in rig.hits() {
            let f = at.iter().position(|at| at.0 == hit.ip.0).expect("one of them");
            told[f] += u64::from(hit.probe == summaries[f].probe.as_str().into());
        }
        for f in 0..FUNCTIONS {
            let hits = summaries[f].hits;
            prop_assert!((least[f]..=most[f]).contains(&hits), "{}: {} of {}..={}", f, hits, least[f], most[f]);
            if f >= FUNCTIONS / 2 {
                // Those of probes that came and went beside it are called the same.
                prop_assert!(told[f] >= hits, "{}: {} told of {}", f, told[f], hits);
            }
        }
    }
}
