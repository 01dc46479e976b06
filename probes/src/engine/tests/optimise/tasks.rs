//! Detours whose programs read numbers of the task.

use super::super::tasks::{GuestTask, SHELL, SWAPPER, describe_tasks};
use super::*;

/// A guest with types, not yet booted, with `probe` at a function with room for a jump. Returns the function, and the one at whose entry the
/// kernel has booted.
fn unbooted(probe: ProbeConfig<EngineAction>) -> (Rig, Gva, Gva) {
    let (mut kernel, at) = roomy_on_3();
    let booted = kernel.function("rest_init", &PLAIN);
    describe_tasks(&mut kernel);
    let rig = Rig::with(&kernel, &[], ABILITIES);
    rig.engine.set_optimising(&rig.paused, true).expect("set");
    let registered = rig.engine.register(&rig.paused, &[probe]);
    registered.expect("registered");
    (rig, at, booted)
}

fn filtered(filter: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        filter: Some(filter.parse().expect("a filter")),
        ..count("probed")
    }
}

#[test]
fn filter_on_the_user_needs_no_exit_once_the_first_task_is_found() {
    let (rig, at, booted) = unbooted(filtered("uid == 1000"));
    rig.switch_to(SWAPPER);
    rig.call(booted, 0);
    // The jump comes with a hit, or with an execution that the filter rejects.
    rig.call(at, 0);
    assert_eq!(rig.shown::<1>(at), [0xe9]);
    let exits = rig.counted(0).1;
    let root = GuestTask { uid: 0, ..SHELL };
    for task in [SHELL, root, SHELL, SWAPPER, SHELL] {
        rig.switch_to(task);
        assert_eq!(rig.call(at, 4), 5);
    }
    assert_eq!(rig.counted(0), (3, exits, Some(Tier::Optimised)));
}

#[test]
fn aggregate_of_the_process_needs_no_exit() {
    let action = Action::Aggregate("sum(pid)".parse().expect("an aggregate"));
    let (rig, at, booted) = unbooted(ProbeConfig {
        action: action.into(),
        ..count("probed")
    });
    rig.switch_to(SWAPPER);
    rig.call(booted, 0);
    rig.call(at, 0);
    let exits = rig.counted(0).1;
    rig.switch_to(SHELL);
    (0..3).for_each(|_| assert_eq!(rig.call(at, 4), 5));
    let probe = rig.probe(0);
    assert_eq!((probe.hits, probe.exits), (4, exits));
    let result = probe.result.map(|result| result.to_string());
    assert_eq!(result.as_deref(), Some("sum(pid): 21"));
}

#[test]
fn filter_on_the_user_exits_with_a_reason_if_the_first_task_is_not_root() {
    let (rig, at, booted) = unbooted(filtered("uid == 1000"));
    rig.switch_to(GuestTask { uid: 5, ..SWAPPER });
    rig.call(booted, 0);
    rig.switch_to(SHELL);
    (0..3).for_each(|_| assert_eq!(rig.call(at, 4), 5));
    let probe = rig.probe(0);
    assert_eq!((probe.hits, probe.exits), (0, 3));
    assert_eq!(probe.missed, [("unknown-task".to_owned(), 3)].into());
    let why = probe.unoptimised.expect("a reason");
    assert!(why.contains("a task's user"), "{why}");
}
