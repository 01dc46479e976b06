use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use manifest::{Expectation, GuestEnd, Manifest};

use super::Judge;
use crate::{
    DataRead, DataWrite, Event, GuestSummary, Hex, Hit, NotStarted, ProbeState, ProbeSummary,
    Registers, Return, Summary,
};

const SECOND: u64 = 1_000_000_000;

/// The expectations of a manifest's tables.
fn expectations(tables: &str) -> Vec<Expectation> {
    let manifest = Manifest::parse(tables, "x", Path::new("")).unwrap_or_else(|error| {
        panic!("{error}: {:?}", error.problems());
    });
    manifest.expectations
}

fn judge(table: &str) -> Judge {
    Judge::new(expectations(&format!("[[expect]]\n{table}\n")))
}

fn hit(probe: &str, second: u64) -> Event {
    Event::Hit(Hit {
        probe: Arc::from(probe),
        ts_ns: second * SECOND,
        vcpu: 0,
        ip: Hex(0x1000),
        symbol: "f+0x0".into(),
        regs: Registers::default(),
        args: [7, 8, 9, 10, 11, 12].map(Hex),
        write: None,
        read: None,
        task: None,
        params: None,
        fields: None,
        depth: 0,
        stack: None,
        stack_incomplete: None,
        program_stack: None,
        program_stack_incomplete: None,
    })
}

fn returned(probe: &str, retval: u64) -> Event {
    Event::Return(Return {
        probe: Arc::from(probe),
        ts_ns: SECOND,
        took_ns: 1,
        vcpu: 0,
        ip: Hex(0x2000),
        symbol: "f+0x0".into(),
        retval: Hex(retval),
        regs: Registers::default(),
        task: None,
        returned: None,
        depth: 0,
        stack: None,
        stack_incomplete: None,
        program_stack: None,
        program_stack_incomplete: None,
    })
}

fn probe(name: &str, hits: u64) -> ProbeSummary {
    ProbeSummary {
        probe: name.to_owned(),
        ip: None,
        hits,
        missed: BTreeMap::new(),
        tier: None,
        exits: hits,
        returns: name.starts_with("kretprobe").then_some(hits),
        in_flight: None,
        state: ProbeState::Armed,
        reason: None,
        unoptimised: None,
        filter: None,
        result: None,
    }
}

fn summary(probes: &[ProbeSummary]) -> Summary {
    Summary {
        accel: "kvm".to_owned(),
        guest: GuestSummary {
            end: GuestEnd::Poweroff,
            detail: None,
            crash: None,
            vcpus: Vec::new(),
            log: None,
        },
        ran_ns: 10 * SECOND,
        probes: probes.to_vec(),
        dropped: 0,
        restarts: Vec::new(),
    }
}

fn feed(judge: &mut Judge, events: &[Event]) {
    for event in events {
        judge.event(Duration::ZERO, event);
    }
}

/// The reason why the only expectation does not hold.
#[track_caller]
fn broken(judge: Judge, summary: &Summary) -> Option<String> {
    let [verdict] = &judge.finish(summary)[..] else {
        panic!("one expectation");
    };
    verdict.broken.clone()
}

#[track_caller]
fn counted(table: &str, hits: u64) -> Option<String> {
    broken(judge(table), &summary(&[probe("kprobe:f", hits)]))
}

#[test]
fn counts_are_those_of_the_summary() {
    for (table, holds, fails) in [
        ("at_least = 3", &[3, 4][..], &[0, 2][..]),
        ("at_most = 3", &[0, 3], &[4]),
        ("exactly = 3", &[3], &[2, 4]),
        ("never = true", &[0], &[1]),
    ] {
        let table = format!("probe = 'kprobe:f'\n{table}");
        for hits in holds {
            assert_eq!(counted(&table, *hits), None, "{table}: {hits}");
        }
        for hits in fails {
            let why = counted(&table, *hits).expect(&table);
            assert!(why.starts_with(&hits.to_string()), "{why}");
        }
    }
}

#[test]
fn a_pattern_s_matches_are_added_up_once_each() {
    let probes = [
        probe("kprobe:vfs_read", 2),
        probe("kprobe:vfs_read", 2),
        probe("kprobe:vfs_open", 1),
        probe("kprobe:ksys_read", 9),
    ];
    let judge = judge("probe = 'kprobe:vfs_*'\nexactly = 3");
    assert_eq!(broken(judge, &summary(&probes)), None);
}

/// The guest can write to the counters of detours.
#[test]
fn counts_that_a_guest_has_overwritten_are_added_up_and_judged() {
    let mut unseen = probe("kprobe:vfs_write", 1);
    for reason in ["unwatched", "maxactive", "unprotected", "unknown-task"] {
        unseen.missed.insert(reason.to_owned(), u64::MAX);
    }
    let probes = [probe("kprobe:vfs_read", u64::MAX), unseen];
    let judge = judge("probe = 'kprobe:vfs_*'\nat_most = 3");
    assert!(broken(judge, &summary(&probes)).is_some());
}

#[test]
fn never_fails_for_a_probe_that_could_miss_hits() {
    let never = "probe = 'kprobe:f'\nnever = true";
    let check = |change: &dyn Fn(&mut ProbeSummary)| {
        let mut probe = probe("kprobe:f", 0);
        change(&mut probe);
        broken(judge(never), &summary(&[probe]))
    };
    let because = |state, reason: &'static str| {
        check(&move |probe| {
            probe.state = state;
            probe.reason = Some(reason.to_owned());
        })
    };
    let refused = because(ProbeState::Refused, "no room").expect("refused");
    assert_eq!(refused, "kprobe:f could not be armed: no room");
    assert!(because(ProbeState::Disabled, "x").is_some());
    assert!(because(ProbeState::Pending, "the run was stopped").is_some());
    assert!(because(ProbeState::Pending, "the module `m` is not loaded").is_some());
    assert_eq!(check(&|probe| probe.state = ProbeState::Gone), None);
    let missed = |reason: &'static str| {
        check(&move |probe| {
            probe.missed.insert(reason.to_owned(), 2);
        })
    };
    assert_eq!(
        missed("unwatched").as_deref(),
        Some("0, but 2 were not seen (unwatched 2)")
    );
    for reason in ["abandoned", "declined", "ring-full"] {
        assert_eq!(missed(reason), None, "{reason}");
    }
    for reason in ["unknown-value", "unknown-task", "of a later version"] {
        assert!(missed(reason).is_some(), "{reason}");
    }
    // A probe that is not in the summary.
    assert!(broken(judge(never), &summary(&[])).is_some());
    // More hits than enough were seen.
    let mut enough = probe("kprobe:f", 5);
    enough.missed.insert("unwatched".to_owned(), 1);
    let at_least = judge("probe = 'kprobe:f'\nat_least = 5");
    assert_eq!(broken(at_least, &summary(&[enough])), None);
}

#[test]
fn calls_in_programs_that_may_have_returned_unseen_decide_nothing() {
    let name = "uretprobe:/bin/x:f";
    let judged = |change: &dyn Fn(&mut ProbeSummary)| {
        let mut probe = probe(name, 3);
        probe.returns = Some(1);
        change(&mut probe);
        let table = format!("probe = '{name}'\nexactly = 1");
        broken(judge(&table), &summary(&[probe]))
    };
    assert_eq!(judged(&|_| ()), None);
    let missed = |reason: &'static str| {
        judged(&move |probe| {
            probe.missed.insert(reason.to_owned(), 2);
        })
    };
    for reason in ["abandoned", "left-unseen", "tail-call"] {
        let why = missed(reason).expect(reason);
        assert!(why.contains(&format!("{reason} 2")), "{why}");
    }
    let why = judged(&|probe| probe.in_flight = Some(2)).expect("in flight");
    assert!(why.contains("in flight 2"), "{why}");
}

#[test]
fn probe_in_a_module_never_loaded_counts_as_not_executed() {
    let mut waits = probe("kprobe:m:f", 0);
    waits.state = ProbeState::Pending;
    waits.reason = Some("the module `m` is not loaded".to_owned());
    let judged = |table: &str| broken(judge(table), &summary(std::slice::from_ref(&waits)));
    assert_eq!(judged("probe = 'kprobe:m:f'\nnever = true"), None);
    let why = judged("probe = 'kprobe:m:f'\nat_least = 1");
    assert_eq!(why.as_deref(), Some("0"));
}

#[test]
fn watchpoint_of_a_process_never_started_counts_as_without_accesses() {
    let name = "watch:struct task_struct.prio@pid:7";
    let judged = |reason: &str| {
        let mut waits = probe(name, 0);
        waits.state = ProbeState::Pending;
        waits.reason = Some(reason.to_owned());
        let never = judge(&format!("probe = '{name}'\nnever = true"));
        broken(never, &summary(&[waits]))
    };
    assert_eq!(judged(&NotStarted { pid: 7 }.to_string()), None);
    let why = judged(&NotStarted { pid: 8 }.to_string()).expect("another reason");
    assert!(why.contains("was never armed"), "{why}");
}

#[test]
fn behind_a_deadline_nothing_counts() {
    let run = |table: &str, seconds: &[u64]| {
        let mut judge = judge(&format!("probe = 'kprobe:f'\nbefore = '5s'\n{table}"));
        for second in seconds {
            judge.event(Duration::ZERO, &hit("kprobe:f", *second));
        }
        let hits = seconds.len() as u64;
        broken(judge, &summary(&[probe("kprobe:f", hits)]))
    };
    assert_eq!(run("at_least = 1", &[5]), None);
    assert_eq!(
        run("at_least = 1", &[6]).as_deref(),
        Some("0 by then, 1 in all")
    );
    assert_eq!(run("exactly = 1", &[1, 6, 7]), None);
    assert_eq!(run("never = true", &[6]), None);
    assert!(run("never = true", &[4]).is_some());
}

#[test]
fn a_hit_that_must_not_be_is_described_and_may_end_the_run() {
    let mut judge = judge("probe = 'kprobe:panic'\nnever = true\nstop = true");
    assert_eq!(judge.stops(), None);
    feed(&mut judge, &[hit("kprobe:oops", 1)]);
    assert_eq!(judge.stops(), None);
    feed(
        &mut judge,
        &[hit("kprobe:panic", 2), hit("kprobe:panic", 3)],
    );
    let why = "hit at 2.000 s on vCPU 0: f+0x0(0x7, 0x8, 0x9)";
    assert_eq!(judge.stops(), Some(why));
    let summary = summary(&[probe("kprobe:panic", 2)]);
    assert_eq!(broken(judge, &summary).as_deref(), Some(why));
}

#[test]
fn without_stop_nothing_ends_the_run() {
    let mut judge = judge("probe = 'kprobe:panic'\nnever = true");
    feed(&mut judge, &[hit("kprobe:panic", 2)]);
    assert_eq!(judge.stops(), None);
}

#[test]
fn probes_come_in_order() {
    let run = |names: &[&str]| {
        let mut judge = judge("order = ['kprobe:a', 'kprobe:b', 'kprobe:c']");
        for name in names {
            judge.event(Duration::ZERO, &hit(&format!("kprobe:{name}"), 1));
        }
        let probes = ["a", "b", "c"].map(|name| probe(&format!("kprobe:{name}"), 1));
        broken(judge, &summary(&probes))
    };
    assert_eq!(run(&["a", "b", "c"]), None);
    assert_eq!(run(&["a", "a", "b", "a", "x", "c", "a"]), None);
    assert_eq!(
        run(&["a", "c", "b"]).as_deref(),
        Some("kprobe:c came before kprobe:b")
    );
    assert_eq!(
        run(&["b", "a"]).as_deref(),
        Some("kprobe:b came before kprobe:a")
    );
    assert_eq!(
        run(&["a", "b"]).as_deref(),
        Some("kprobe:c was not hit in its turn")
    );
}

#[test]
fn negative_results_by_their_width() {
    let run = |width: &str, value: u64| {
        let table = format!("probe = 'kretprobe:f'\nnever_negative = '{width}'");
        let mut judge = judge(&table);
        feed(
            &mut judge,
            &[returned("kretprobe:f", 0), returned("kretprobe:f", value)],
        );
        broken(judge, &summary(&[probe("kretprobe:f", 2)]))
    };
    let int = u64::from((-22_i32).cast_unsigned());
    let long = (-22_i64).cast_unsigned();
    assert!(
        run("int", int)
            .expect("an int")
            .starts_with("it returned -22, at 1.000 s")
    );
    assert_eq!(run("long", int), None);
    assert!(run("long", long).is_some());
    // The upper half of an `int`'s register may have any value.
    assert_eq!(run("int", 0xffff_ffff_0000_0001), None);
}

#[test]
fn returns_that_were_not_seen_may_have_been_negative() {
    let judge = judge("probe = 'kretprobe:f'\nnever_negative = 'long'");
    let mut probe = probe("kretprobe:f", 2);
    probe.missed.insert("maxactive".to_owned(), 3);
    let why = broken(judge, &summary(&[probe])).expect("missed");
    assert!(why.contains("maxactive 3"), "{why}");
}

#[test]
fn values_are_looked_for_where_they_are() {
    let run = |table: &str, event: &Event| {
        let mut judge = judge(table);
        judge.event(Duration::ZERO, event);
        let probes = [probe("kprobe:f", 1), probe("kretprobe:f", 1)];
        broken(judge, &summary(&probes))
    };
    let hit = hit("kprobe:f", 1);
    assert_eq!(run("probe = 'kprobe:f'\nseen = 7", &hit), None);
    assert_eq!(run("probe = 'kprobe:f'\nseen = 9\nin = 'arg2'", &hit), None);
    let why = run("probe = 'kprobe:f'\nseen = 9", &hit).expect("arg0 is 7");
    assert_eq!(why, "it is in none of 1 hits");
    let seen = "probe = 'kretprobe:f'\nseen = -5";
    for value in [
        (-5_i64).cast_unsigned(),
        u64::from((-5_i32).cast_unsigned()),
    ] {
        assert_eq!(run(seen, &returned("kretprobe:f", value)), None);
    }
    assert!(run(seen, &returned("kretprobe:f", 5)).is_some());
}

#[test]
fn the_console_is_judged_by_lines() {
    let run = |table: &str, text: &str| {
        let mut judge = judge(table);
        for chunk in text.as_bytes().chunks(3) {
            judge.console(Duration::ZERO, chunk);
        }
        broken(judge, &summary(&[]))
    };
    assert_eq!(run("console = '^login:'", "boot\r\nlogin: "), None);
    assert_eq!(run("console = 'y$'", "ready\r\n"), None);
    assert_eq!(
        run("console = '^login:'", "last login: x\n").as_deref(),
        Some("there was no such line")
    );
    let never = "console = 'BUG:|Oops'\nnever = true";
    assert_eq!(run(never, "all is well\n"), None);
    assert_eq!(
        run(never, "a\n[1] BUG: \x07bad\nb\n").as_deref(),
        Some("it says: [1] BUG: bad")
    );
}

#[test]
fn a_console_line_comes_in_time_or_not() {
    let run = |at: u64| {
        let mut judge = judge("console = 'up'\nbefore = '5s'");
        judge.console(Duration::from_secs(100), b"begin\n");
        judge.console(Duration::from_secs(100 + at), b"up\n");
        broken(judge, &summary(&[]))
    };
    assert_eq!(run(5), None);
    assert!(run(6).is_some());
}

#[test]
fn memory_for_the_console_is_bounded() {
    let mut judge = judge("console = 'x'\nnever = true");
    for _ in 0..1000 {
        judge.console(Duration::ZERO, &[b'y'; 10_000]);
    }
    judge.console(Duration::ZERO, &[b'x'; 100_000]);
    let why = broken(judge, &summary(&[])).expect("x");
    assert!(why.len() < 300, "{}", why.len());
}

#[test]
fn the_guest_ends_as_it_should_and_in_time() {
    let run = |table: &str, end, detail: Option<&str>| {
        let mut summary = summary(&[]);
        summary.guest = GuestSummary {
            end,
            detail: detail.map(str::to_owned),
            crash: None,
            vcpus: Vec::new(),
            log: None,
        };
        broken(judge(table), &summary)
    };
    let table = "end = 'poweroff'";
    assert_eq!(run(table, GuestEnd::Poweroff, None), None);
    assert_eq!(
        run(table, GuestEnd::Panic, Some("no init")).as_deref(),
        Some("it ended by panic: no init")
    );
    assert_eq!(run("end = 'panic'", GuestEnd::Panic, None), None);
    let late = run("end = 'poweroff'\nbefore = '9s'", GuestEnd::Poweroff, None);
    assert_eq!(late.as_deref(), Some("it ran for 10.0 s"));
}

#[test]
fn lost_events_are_no_proof() {
    let judge_of = |table: &str| {
        let mut summary = summary(&[probe("kprobe:f", 1), probe("kretprobe:f", 1)]);
        summary.dropped = 3;
        broken(judge(table), &summary)
    };
    let lost = Some("3 events were lost".to_owned());
    assert_eq!(
        judge_of("probe = 'kretprobe:f'\nnever_negative = 'int'"),
        lost
    );
    assert_eq!(
        judge_of("probe = 'kprobe:f'\nat_most = 1\nbefore = '1s'"),
        lost
    );
    assert_eq!(judge_of("probe = 'kprobe:f'\nat_most = 1"), None);
}

/// A write to 4 watched bytes by `g`, or a read.
fn access(value: u64, is_write: bool) -> Event {
    let Event::Hit(plain) = hit("watch:x:rw", 1) else {
        unreachable!("a hit")
    };
    let (at, offset, copy, bytes) = (Hex(0x1000), 0, None, 4);
    let write = DataWrite {
        at,
        offset,
        copy,
        bytes,
        old: Hex(99),
        new: Hex(value),
    };
    let read = DataRead {
        at,
        offset,
        copy,
        bytes,
        value: Hex(value),
    };
    Event::Hit(Hit {
        symbol: "g+0x10".into(),
        write: is_write.then_some(write),
        read: (!is_write).then_some(read),
        ..plain
    })
}

#[test]
fn other_values_of_watched_data_break_an_expectation() {
    let judged = |accesses: &[(u64, bool)]| {
        let mut judge = judge("probe = 'watch:x:rw'\nonly = [0, 5, -1]");
        for (value, is_write) in accesses {
            judge.event(Duration::ZERO, &access(*value, *is_write));
        }
        let hits = accesses.len() as u64;
        broken(judge, &summary(&[probe("watch:x:rw", hits)]))
    };
    assert_eq!(judged(&[]), None);
    assert_eq!(judged(&[(5, true), (0xffff_ffff, true), (0, false)]), None);
    let written = judged(&[(5, true), (6, true), (7, true)]).expect("another value");
    assert_eq!(
        written,
        "write at 1.000 s on vCPU 0: g+0x10 has replaced 0x63 by 0x6"
    );
    let read = judged(&[(99, false)]).expect("another value");
    assert_eq!(read, "read at 1.000 s on vCPU 0: g+0x10 has found 0x63");
}

#[test]
fn part_of_watched_data_breaks_an_expectation_of_values() {
    let judged = |spec: &str, offset| {
        let mut judge = judge(&format!("probe = '{spec}'\nonly = [1]"));
        let Event::Hit(mut hit) = access(1, true) else {
            unreachable!("a hit")
        };
        hit.probe = spec.into();
        hit.write = hit.write.map(|write| DataWrite { offset, ..write });
        judge.event(Duration::ZERO, &Event::Hit(hit));
        broken(judge, &summary(&[probe(spec, 1)]))
    };
    assert_eq!(judged("watch:x", 0), None);
    assert_eq!(judged("watch:x:4", 0), None);
    assert!(judged("watch:x", 8).is_some());
    // The bytes are on two pages.
    assert!(judged("watch:x:8", 0).is_some());
}

#[test]
fn other_functions_that_access_watched_data_break_an_expectation() {
    let judged = |names: &str| {
        let mut judge = judge(&format!("probe = 'watch:x:rw'\nonly_by = [{names}]"));
        judge.event(Duration::ZERO, &access(1, true));
        broken(judge, &summary(&[probe("watch:x:rw", 1)]))
    };
    assert_eq!(judged("'f', 'g'"), None);
    assert_eq!(judged("'[g-h]'"), None);
    assert!(judged("'f'").is_some());
}

#[test]
fn unseen_accesses_break_an_expectation_of_values() {
    let judged = |change: &dyn Fn(&mut ProbeSummary), dropped| {
        let mut probe = probe("watch:x:rw", 0);
        change(&mut probe);
        let judge = judge("probe = 'watch:x:rw'\nonly = [0]");
        let mut summary = summary(&[probe]);
        summary.dropped = dropped;
        broken(judge, &summary)
    };
    let missed = |probe: &mut ProbeSummary| {
        probe.missed.insert("unprotected".to_owned(), 2);
    };
    assert_eq!(
        judged(&missed, 0).as_deref(),
        Some("none that were seen, but accesses of watch:x:rw: 2 were not seen (unprotected 2)")
    );
    let refused = judged(&|probe| probe.state = ProbeState::Refused, 0);
    assert!(refused.is_some_and(|why| why.contains("could not be armed")));
    assert_eq!(judged(&|_| (), 3).as_deref(), Some("3 events were lost"));
}
