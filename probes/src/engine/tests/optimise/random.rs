//! Jumps and probes that come and go at random, several at one site, with interrupted tasks and paused vCPUs at any instruction.

use std::sync::atomic::Ordering;

use events::ProbeId;
use manifest::program::AggregateResult;
use proptest::prelude::*;

use super::sharing::{CountingHandler, caller_of, filtered, followed, handled, sum};
use super::*;

#[derive(Clone, Debug)]
enum Op {
    Call(usize, u64),
    /// A task begins a call. After the given number of instructions the task is interrupted, or its vCPU stands there.
    Begin(usize, u64, usize, bool),
    /// The task that was stopped first continues.
    Finish,
    Optimise(bool),
    /// Another probe at a site.
    Add(usize, Kind),
    /// Removes the probe of the given number; `Enable` disables or enables one.
    Remove(usize),
    Enable(usize, bool),
    /// Switches the knob off and on again, with no time between.
    Knob,
    /// Switches the knob off, and on again after a task has continued.
    KnobAndFinish,
    /// The guest puts another value into a `mov`.
    Write(usize, u8),
}

/// The action of a probe at a hit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Count,
    CountSmall,
    Record,
    RecordSmall,
    Sum,
    Follow,
    FollowSmall,
    /// A handler for hits that the filter accepts.
    HandleSmall,
    /// No detour can do the work of this kind and the next.
    Handle,
    FollowHandled,
}

const KINDS: [Kind; 10] = [
    Kind::Count,
    Kind::CountSmall,
    Kind::Record,
    Kind::RecordSmall,
    Kind::Sum,
    Kind::Follow,
    Kind::FollowSmall,
    Kind::HandleSmall,
    Kind::Handle,
    Kind::FollowHandled,
];

impl Kind {
    /// Whether the kind's filter accepts calls with this argument.
    fn accepts(self, argument: u64) -> bool {
        let is_filtered = matches!(
            self,
            Self::CountSmall | Self::RecordSmall | Self::FollowSmall | Self::HandleSmall
        );
        !is_filtered || argument < 4
    }

    fn follows(self) -> bool {
        matches!(self, Self::Follow | Self::FollowSmall | Self::FollowHandled)
    }

    fn new_probe(self, site: &str, looks: &Arc<CountingHandler>) -> ProbeConfig<EngineAction> {
        let small = |new| filtered("arg0 < 4", new);
        match self {
            Self::Count => count(site),
            Self::CountSmall => small(count(site)),
            Self::Record => new(site),
            Self::RecordSmall => small(new(site)),
            Self::Sum => sum(site),
            Self::Follow => followed(site, Action::Trace),
            Self::FollowSmall => small(followed(site, Action::Count)),
            Self::HandleSmall => small(ProbeConfig {
                action: EngineAction::Handle(Arc::clone(looks) as _),
                ..new(site)
            }),
            Self::Handle => handled(site),
            Self::FollowHandled => {
                followed(site, EngineAction::HandleReturn(Arc::clone(looks) as _))
            }
        }
    }
}

const FUNCTIONS: usize = 4;
/// The sites: the functions, and the return site of the first function's call.
const SITES: usize = FUNCTIONS + 1;
const RETURN_SITE: usize = FUNCTIONS;
/// Tasks at once, each on a stack of its own.
const TASKS: u64 = 4;
const STACK_BYTES: u64 = 0x4000;
const STACKS: u64 = 0x8_0000;

/// Every other function has no room for a jump at its entry: `push rbp; mov eax, 1; lea eax, [rax + rdi]; pop rbp; ret`
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

/// The address of the constant in the function.
fn constant_at(f: usize) -> u64 {
    1 + u64::from(is_short(f))
}

fn op() -> impl Strategy<Value = Op> {
    let function = 0..FUNCTIONS;
    let kind = prop::sample::select(&KINDS[..]);
    prop_oneof![
        6 => (function.clone(), 0..9_u64).prop_map(|(f, n)| Op::Call(f, n)),
        4 => (function.clone(), 0..9_u64, 0..300_usize, any::<bool>())
            .prop_map(|(f, n, steps, stands)| Op::Begin(f, n, steps, stands)),
        4 => Just(Op::Finish),
        2 => any::<bool>().prop_map(Op::Optimise),
        6 => (0..SITES, kind).prop_map(|(site, kind)| Op::Add(site, kind)),
        4 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(n, on)| Op::Enable(n, on)),
        2 => Just(Op::Knob),
        1 => Just(Op::KnobAndFinish),
        2 => (function, any::<u8>()).prop_map(|(f, value)| Op::Write(f, value)),
    ]
}

/// A stopped task: the registers, the frame if interrupted, the expected result, and the call.
struct Task {
    vcpu: FakeVcpu,
    frame: Option<u64>,
    stack: u64,
    returns: u64,
    function: usize,
    argument: u64,
}

impl Task {
    fn finish(self, rig: &Rig) {
        let Self {
            mut vcpu, frame, ..
        } = self;
        if let Some(frame) = frame {
            return_from(rig, frame, &mut vcpu);
        }
        assert_eq!(rig.run(&mut vcpu, 5000), Stepped::Returned);
        assert_eq!((vcpu.regs.rax, vcpu.regs.rflags), (self.returns, FLAGS));
    }
}

/// Removes every plant while these tasks are stopped.
fn knob_off(rig: &Rig, tasks: &[Task]) {
    let stands = tasks.iter().filter(|task| task.frame.is_none());
    rig.stands(&stands.map(|task| &task.vcpu).collect::<Vec<_>>());
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    rig.stands(&[]);
}

/// Whether calls of a function execute the instruction at a site.
fn comes_by(function: usize, site: usize) -> bool {
    function == site || (function, site) == (0, RETURN_SITE)
}

/// The number of hits, and the sum of their arguments.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    hits: u64,
    sum: u64,
}

impl Counted {
    fn add(&mut self, argument: u64) {
        self.hits += 1;
        self.sum += argument;
    }

    fn take(&mut self, argument: u64) {
        self.hits -= 1;
        self.sum -= argument;
    }
}

/// A probe, and its expected counts: a call in flight when the probe is added or removed may be counted or not; every other call
/// is counted.
struct Probed {
    id: ProbeId,
    site: usize,
    kind: Kind,
    enabled: bool,
    least: Counted,
    most: Counted,
    looks: Arc<CountingHandler>,
}

impl Probed {
    fn wants(&self, function: usize, argument: u64) -> bool {
        comes_by(function, self.site) && self.kind.accepts(argument)
    }

    fn called(&mut self, function: usize, argument: u64) {
        if self.enabled && self.wants(function, argument) {
            self.least.add(argument);
            self.most.add(argument);
        }
    }

    /// Removes or disables the probe: calls in flight may stay uncounted.
    fn goes(&mut self, tasks: &[Task]) {
        if self.enabled {
            for task in tasks {
                self.may_miss(task);
            }
        }
        self.enabled = false;
    }

    fn may_miss(&mut self, task: &Task) {
        // The task may have passed the site before the probe was added.
        if self.wants(task.function, task.argument) && self.least.hits > 0 {
            self.least.take(task.argument.min(self.least.sum));
        }
    }

    /// Adds or enables the probe: calls in flight may be counted.
    fn comes(&mut self, tasks: &[Task]) {
        if !self.enabled {
            for task in tasks {
                if self.wants(task.function, task.argument) {
                    self.most.add(task.argument);
                }
            }
        }
        self.enabled = true;
    }

    /// Checks the probe's counts. Returns the number of events expected.
    fn check(&self, rig: &Rig) -> u64 {
        let told = rig.engine.inventory().summaries();
        let ids = rig.engine.inventory().ids();
        let index = ids
            .iter()
            .position(|id| *id == self.id)
            .expect("registered");
        let told = &told[index];
        let (least, most) = (self.least, self.most);
        let what = || {
            format!(
                "{least:?} to {most:?} expected at {}: {:?}, {told:?}",
                self.site, self.kind
            )
        };
        assert!((least.hits..=most.hits).contains(&told.hits), "{}", what());
        if let Some(AggregateResult::Sum { count, value, .. }) = &told.result {
            let value = value.cast_unsigned();
            assert!((least.sum..=most.sum).contains(&value), "{}", what());
            assert_eq!(*count, told.hits, "{}", what());
        }
        if let (Some(returns), Some(in_flight)) = (told.returns, told.in_flight) {
            let missed: u64 = told.missed.values().sum();
            assert_eq!(told.hits, returns + in_flight + missed, "{}", what());
            // A call looked up before the removal of its return site, and recorded afterwards, is missed for the same reason.
            let mut why = told.missed.keys();
            let other = why.find(|why| !["disarmed", "return-site"].contains(&why.as_ref()));
            assert_eq!(other, None, "{}", what());
        } else if matches!(self.kind, Kind::Count | Kind::CountSmall | Kind::Sum) {
            assert!(told.missed.is_empty(), "{}", what());
        } else {
            // A task inside the detour when the probe was disabled may exit later.
            let missed: u64 = told.missed.values().sum();
            let disarmed = told.missed.get("disarmed").copied().unwrap_or(0);
            assert_eq!(missed, disarmed, "{}", what());
            assert!(told.hits + missed <= most.hits, "{}", what());
        }
        if self.kind == Kind::HandleSmall {
            assert_eq!(
                self.looks.0.load(Ordering::Relaxed),
                told.hits,
                "{}",
                what()
            );
        }
        match self.kind {
            Kind::Record | Kind::RecordSmall => told.hits,
            _ => 0,
        }
    }
}

struct World {
    rig: Rig,
    /// The functions, their callers, and the names of the sites.
    at: Vec<Gva>,
    callers: Vec<Gva>,
    names: Vec<String>,
    probes: Vec<Probed>,
    tasks: Vec<Task>,
    constants: [u64; FUNCTIONS],
    /// The events of removed probes.
    events: u64,
}

impl World {
    fn new() -> Self {
        let mut kernel = SyntheticKernel::new();
        let at: Vec<Gva> = (0..FUNCTIONS)
            .map(|n| kernel.function(&format!("roomy{n}"), &code(n)))
            .collect();
        let callers = at.iter().enumerate();
        let callers = callers
            .map(|(n, at)| kernel.function(&format!("caller{n}"), &caller_of(*at)))
            .collect();
        int3::handler(&mut kernel);
        kernel.function("cpu_number", &[0; 4]);
        let rig = Rig::with(&kernel, &[], ABILITIES);
        int3::table(&rig);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let names = (0..FUNCTIONS).map(|n| format!("roomy{n}"));
        let names = names.chain(["caller0+0x9".to_owned()]).collect();
        let mut world = Self {
            rig,
            at,
            callers,
            names,
            probes: Vec::new(),
            tasks: Vec::new(),
            constants: [1; FUNCTIONS],
            events: 0,
        };
        // The first functions have counting probes, the others reporting probes.
        for site in 0..FUNCTIONS {
            let kind = if site < FUNCTIONS / 2 {
                Kind::Count
            } else {
                Kind::Record
            };
            world.add(site, kind);
        }
        for f in [0, 1] {
            world.call(f, 0);
        }
        assert_eq!(world.rig.shown::<1>(world.at[0]), [0xe9]);
        assert_eq!(world.rig.shown::<1>(world.at[1]), INT3);
        world
    }

    fn add(&mut self, site: usize, kind: Kind) {
        let looks = Arc::default();
        let new = kind.new_probe(&self.names[site], &looks);
        let ids = self.rig.engine.register(&self.rig.paused, &[new]);
        let mut probed = Probed {
            id: ids.expect("registered")[0],
            site,
            kind,
            enabled: false,
            least: Counted::default(),
            most: Counted::default(),
            looks,
        };
        probed.comes(&self.tasks);
        self.probes.push(probed);
    }

    fn remove(&mut self, number: usize) {
        let mut probed = self.probes.remove(number);
        probed.goes(&self.tasks);
        self.events += probed.check(&self.rig);
        let removed = self.rig.engine.unregister(&self.rig.paused, &[probed.id]);
        removed.expect("removed");
    }

    fn called(&mut self, f: usize, n: u64) {
        for probed in &mut self.probes {
            probed.called(f, n);
        }
    }

    fn call(&mut self, f: usize, n: u64) {
        let rig = &self.rig;
        let mut vcpu = rig.calling(self.callers[f], n, STACK);
        assert_eq!(rig.run(&mut vcpu, 5000), Stepped::Returned);
        assert_eq!((vcpu.regs.rsp, vcpu.regs.rflags), (STACK, FLAGS));
        assert_eq!(vcpu.regs.rax, n + self.constants[f]);
        self.called(f, n);
    }

    fn begin(&mut self, f: usize, n: u64, steps: usize, stands: bool) {
        let rig = &self.rig;
        let is_free = |stack: &u64| self.tasks.iter().all(|task| task.stack != *stack);
        let mut stacks = (1..=TASKS).map(|number| STACKS + number * STACK_BYTES - 0x400);
        let Some(stack) = stacks.find(is_free) else {
            return;
        };
        let mut vcpu = rig.calling(self.callers[f], n, stack);
        let mut is_there = rig.run(&mut vcpu, steps) == Stepped::On;
        while is_there && !stands && vcpu.regs.rflags & INTERRUPTS == 0 {
            is_there = rig.run(&mut vcpu, 1) == Stepped::On;
        }
        if is_there {
            let frame = (!stands).then(|| frame(rig, &vcpu));
            self.tasks.push(Task {
                vcpu,
                frame,
                stack,
                returns: n + self.constants[f],
                function: f,
                argument: n,
            });
        }
        self.called(f, n);
    }

    fn perform(&mut self, op: Op) {
        match op {
            Op::Call(f, n) => self.call(f, n),
            Op::Begin(f, n, steps, stands) => self.begin(f, n, steps, stands),
            Op::Finish if self.tasks.is_empty() => (),
            Op::Finish => self.tasks.remove(0).finish(&self.rig),
            Op::Optimise(on) => {
                let rig = &self.rig;
                rig.engine.set_optimising(&rig.paused, on).expect("set");
            }
            // No function is called there.
            Op::Add(RETURN_SITE, kind) if kind.follows() => (),
            Op::Add(site, kind) => self.add(site, kind),
            Op::Remove(_) | Op::Enable(..) if self.probes.is_empty() => (),
            Op::Remove(number) => self.remove(number % self.probes.len()),
            Op::Enable(number, on) => {
                let number = number % self.probes.len();
                let probed = &mut self.probes[number];
                if on {
                    probed.comes(&self.tasks);
                } else {
                    probed.goes(&self.tasks);
                }
                let rig = &self.rig;
                let set = rig.engine.set_enabled(&rig.paused, probed.id, on);
                set.expect("set");
            }
            Op::Knob => {
                knob_off(&self.rig, &self.tasks);
                for (f, at) in self.at.iter().enumerate() {
                    let constant = self.rig.shown::<1>(at.wrapping_add(constant_at(f)))[0];
                    assert_eq!(u64::from(constant), self.constants[f]);
                }
                assert_eq!(self.rig.shown::<1>(self.at[0]), [ROOMY[0]]);
                let rig = &self.rig;
                rig.engine.set_armed(&rig.paused, true).expect("armed");
            }
            Op::KnobAndFinish => {
                knob_off(&self.rig, &self.tasks);
                if !self.tasks.is_empty() {
                    let task = self.tasks.remove(0);
                    // A task that executes the instruction without a plant is not counted.
                    for probed in &mut self.probes {
                        probed.may_miss(&task);
                    }
                    task.finish(&self.rig);
                }
                let rig = &self.rig;
                rig.engine.set_armed(&rig.paused, true).expect("armed");
            }
            Op::Write(f, value) => {
                self.finish_all();
                let at = self.at[f].wrapping_add(constant_at(f));
                self.rig.guest_writes(at, &[value]);
                self.constants[f] = value.into();
            }
        }
    }

    fn finish_all(&mut self) {
        for task in self.tasks.drain(..) {
            task.finish(&self.rig);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Jumps come and go: the guest's results stay the same, and each enabled probe counts each call once, however many probes
    /// are at its site.
    #[test]
    fn optimising_changes_neither_results_nor_counts(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in ops.into_iter().chain([Op::Knob]) {
            world.perform(op);
            for probed in &world.probes {
                // Calls in flight have yet to be counted.
                let mut now = Probed { looks: Arc::clone(&probed.looks), ..*probed };
                now.goes(&world.tasks);
                now.check(&world.rig);
            }
        }
        world.finish_all();
        let events: u64 = world.probes.iter().map(|probed| probed.check(&world.rig)).sum();
        prop_assert_eq!(world.rig.hits().len() as u64, events + world.events);
        prop_assert!(world.rig.notes().is_empty());
        for told in world.rig.engine.inventory().summaries() {
            prop_assert_eq!(told.in_flight.unwrap_or(0), 0, "{:?}", told);
        }
    }
}
