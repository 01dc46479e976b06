//! The task at a hit: in events, filters and aggregates.

use address::Gva;
use events::{ProbeSummary, Task};
use introspect::btf::synthetic::Blob;
use manifest::{Action, ProbeConfig, ProbeSpec};
use text::testing::FakeVcpu;

use super::{DATA, PLAIN, Rig, vcpu};
use crate::engine::{Engine, EngineAction, RegisterError};
use crate::resolve::ResolveProblem;
use crate::resolve::synthetic::SyntheticKernel;

/// The pointer to the task, of a processor whose `gs` is 0.
pub(super) const CURRENT: u64 = DATA + 0x108;
pub(super) const TASK: u64 = DATA + 0x400;
const CRED: u64 = DATA + 0x800;
/// `PF_KTHREAD`.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// Adds tasks to a kernel, with the types that describe them.
pub(super) fn describe_tasks(kernel: &mut SyntheticKernel) {
    let mut blob = Blob::new();
    let byte = blob.int("char", 1);
    let int = blob.int("int", 4);
    let long = blob.int("unsigned long", 8);
    let name = blob.array(byte, 16);
    let user = blob.structure("kuid_t", 4, &[("val", int, 0)]);
    blob.structure("cred", 16, &[("uid", user, 8)]);
    let members = [
        ("flags", int, 4),
        ("pid", int, 8),
        ("tgid", int, 12),
        ("cred", long, 24),
        ("comm", name, 32),
    ];
    blob.structure("task_struct", 0x100, &members);
    kernel.types(&blob.finish());
    kernel.symbol("current_task", Gva(CURRENT));
}

/// A task of the guest.
#[derive(Clone, Copy)]
pub(super) struct GuestTask {
    pub(super) tid: u32,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) comm: &'static [u8],
    pub(super) flags: u32,
}

/// The first task of a kernel.
pub(super) const SWAPPER: GuestTask = GuestTask {
    tid: 0,
    pid: 0,
    uid: 0,
    comm: b"swapper/0",
    flags: KERNEL_THREAD,
};

pub(super) const SHELL: GuestTask = GuestTask {
    tid: 8,
    pid: 7,
    uid: 1000,
    comm: b"sh",
    flags: 0,
};

impl Rig {
    /// Lets the processor run `task`.
    pub(super) fn switch_to(&self, task: GuestTask) {
        let mut comm = [0; 16];
        comm[..task.comm.len()].copy_from_slice(task.comm);
        self.memory.put(CURRENT, &TASK.to_le_bytes());
        self.memory.put(TASK + 4, &task.flags.to_le_bytes());
        self.memory.put(TASK + 8, &task.tid.to_le_bytes());
        self.memory.put(TASK + 12, &task.pid.to_le_bytes());
        self.memory.put(TASK + 24, &CRED.to_le_bytes());
        self.memory.put(TASK + 32, &comm);
        self.memory.put(CRED + 8, &task.uid.to_le_bytes());
        // The group is behind the user.
        self.memory.put(CRED + 12, &4321_u32.to_le_bytes());
    }
}

/// A probe at `f` with a filter or an aggregate.
fn probe(spec: &str, filter: Option<&str>, aggregate: Option<&str>) -> ProbeConfig<EngineAction> {
    let action = match aggregate {
        Some(aggregate) => Action::Aggregate(aggregate.parse().expect("an aggregate")),
        None => Action::Count,
    };
    let spec = spec.parse::<ProbeSpec>().expect("a probe");
    ProbeConfig {
        filter: filter.map(|text| text.parse().expect("a filter")),
        ..ProbeConfig::from(spec).with_action(action.into())
    }
}

/// A guest with the function `f`, with or without tasks.
fn guest(has_tasks: bool) -> (Rig, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("f", &PLAIN);
    if has_tasks {
        describe_tasks(&mut kernel);
    }
    (Rig::new(&kernel, &[]), at)
}

/// Registers `probe`, and hits it as two tasks of one user and one of root.
fn hit_as_three_tasks(probe: ProbeConfig<EngineAction>) -> (Rig, Gva) {
    let (rig, at) = guest(true);
    let registered = rig.engine.register(&rig.paused, &[probe]);
    registered.expect("registered");
    let other = GuestTask { tid: 9, ..SHELL };
    for task in [SHELL, other, SWAPPER] {
        rig.switch_to(task);
        rig.engine.hits.on_hit(&mut vcpu(at), at).expect("handled");
    }
    (rig, at)
}

#[test]
fn filter_on_a_number_of_the_task_accepts_the_hits_of_that_task() {
    for (filter, hits) in [
        ("uid == 1000", 2),
        ("uid == 0", 1),
        ("pid == 7", 2),
        ("tid == 8", 1),
        ("uid >= 1 && tid != 8", 1),
        ("comm == \"sh\"", 2),
        ("comm != \"sh\"", 1),
        ("comm == \"swapper/0\" && pid == 0", 1),
        ("comm == \"swapper/\"", 0),
    ] {
        let (rig, _) = hit_as_three_tasks(probe("kprobe:f", Some(filter), None));
        assert_eq!(
            (rig.probe(0).hits, rig.probe(0).exits),
            (hits, 3),
            "{filter}"
        );
    }
}

#[test]
fn aggregate_adds_the_numbers_of_the_tasks() {
    for (aggregate, result) in [
        ("sum(uid)", "sum(uid): 2000"),
        ("max(pid)", "max(pid): 7"),
        ("sum(tid)", "sum(tid): 17"),
    ] {
        let (rig, _) = hit_as_three_tasks(probe("kprobe:f", None, Some(aggregate)));
        let shown = rig.probe(0).result.map(|result| result.to_string());
        assert_eq!(shown.as_deref(), Some(result));
    }
}

/// Hits a probe of `spec` in a task whose credentials are not in memory.
fn hit_without_credentials(
    spec: &str,
    filter: Option<&str>,
    aggregate: Option<&str>,
) -> ProbeSummary {
    let (rig, at) = guest(true);
    let registered = rig
        .engine
        .register(&rig.paused, &[probe(spec, filter, aggregate)]);
    registered.expect("registered");
    rig.switch_to(SHELL);
    rig.memory.put(TASK + 24, &0x7fff_0000_u64.to_le_bytes());
    let hit = rig.engine.hits.on_hit(&mut vcpu(at), at);
    hit.expect("handled");
    rig.probe(0)
}

#[test]
fn unknown_number_fails_each_comparison_and_counts_as_missed() {
    let missed = [("unknown-task".to_owned(), 1)].into();
    for filter in [
        "uid == 0",
        "uid != 0",
        "uid >= 1000",
        "(int64)uid < 0",
        "pid == 7 && uid == 0xffffffffffffffff",
    ] {
        let probe = hit_without_credentials("kprobe:f", Some(filter), None);
        assert_eq!((probe.hits, &probe.missed), (0, &missed), "{filter}");
        let followed = hit_without_credentials("kretprobe:f", Some(filter), None);
        let counts = (followed.hits, followed.in_flight, &followed.missed);
        assert_eq!(counts, (1, Some(0), &missed), "{filter}");
    }
    let other = hit_without_credentials("kprobe:f", Some("uid == 0 && pid == 8"), None);
    assert_eq!((other.hits, other.missed.len()), (0, 0));
    let sum = hit_without_credentials("kprobe:f", None, Some("sum(uid)"));
    assert_eq!(sum.missed, missed);
    let result = sum.result.map(|result| result.to_string());
    assert_eq!(result.as_deref(), Some("sum(uid): 0"));
}

#[test]
fn number_of_the_task_is_refused_for_a_kernel_without_types() {
    let (rig, _) = guest(false);
    for wrong in [
        probe("kprobe:f", Some("uid == 0"), None),
        probe("kprobe:f", Some("comm == \"sh\""), None),
        probe("kprobe:f", None, Some("hist(pid)")),
        probe("kretprobe:f", None, Some("sum(tid)")),
    ] {
        let error = rig.engine.register(&rig.paused, &[wrong]);
        let Err(RegisterError::Resolve(error)) = error else {
            panic!("{error:?}");
        };
        assert!(
            matches!(error.problem, ResolveProblem::NoTaskNumber { .. }),
            "{error}"
        );
    }
}

/// The requests to KVM for a hit: one for the general registers, one for the system registers, and those for the instruction.
#[test]
fn filter_arguments_and_event_of_a_hit_share_one_request_for_system_registers() {
    let requests = |filter: Option<&str>| {
        let (rig, at) = guest(true);
        let traced = ProbeConfig {
            action: EngineAction::default(),
            ..probe("kprobe:f", filter, None)
        };
        let registered = rig.engine.register(&rig.paused, &[traced]);
        registered.expect("registered");
        rig.switch_to(SHELL);
        let mut vcpu = vcpu(at);
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
        let hits = rig.hits();
        let task = hits.first().and_then(|hit| hit.task.as_ref());
        assert_eq!(
            task,
            Some(&Task {
                tid: 8,
                pid: 7,
                comm: "sh".to_owned(),
                uid: Some(1000),
                kernel_thread: Some(false),
                ..Task::default()
            })
        );
        vcpu.requests.made()
    };
    assert_eq!(requests(Some("uid == 1000 && pid == 7")), requests(None));
}

#[test]
fn task_of_a_vcpu_in_a_program_is_found_by_the_gs_of_the_kernel() {
    const PROGRAM: u8 = 3;
    let (rig, at) = guest(true);
    rig.switch_to(SHELL);
    let mut vcpu = vcpu(at);
    // The program's own.
    vcpu.state.system.segments.gs.base = DATA;
    let Engine {
        running, records, ..
    } = &rig.engine;
    let task = |vcpu: &mut FakeVcpu| {
        let state = running.kernel_state(vcpu).expect("the state");
        let task = records.tasks.named(&state.into(), Gva(0x1180))?;
        Some((task.tid, task.pid))
    };
    assert_ne!(task(&mut vcpu), Some((8, 7)));
    vcpu.state.privilege = PROGRAM;
    assert_eq!(task(&mut vcpu), Some((8, 7)));
}
