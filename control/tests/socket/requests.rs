//! Answers and refusals of every path.

use std::sync::atomic::Ordering;

use control_fake::MEMORY_AT;
use events::{Event, EventSink as _, Note, ProbeState, ProbeStatus};
use hyprobe_control::ClientError;
use hyprobe_control::api::{
    AddProbe, AddProbes, ChangeProbe, EventLine, MachineState, ProblemKind, SetKnobs,
};
use manifest::{ProbeAction, ProbeVariable};

use crate::rig::Rig;

fn one(spec: &str) -> AddProbes {
    AddProbes::One(AddProbe::new(spec))
}

fn note(ts_ns: u64) -> Event {
    Event::Note(Note {
        ts_ns,
        probe: None,
        text: "x".to_owned(),
    })
}

/// The guest can write to the counters of detours.
#[test]
fn counts_that_a_guest_has_overwritten_are_summed_up() {
    let rig = Rig::new();
    let client = rig.client();
    client.add(&one("kprobe:one")).expect("added");
    client.add(&one("kprobe:two")).expect("added");
    for probe in rig.straw.probes().iter_mut() {
        probe.summary.hits = u64::MAX - 1;
    }
    assert_eq!(client.machine().expect("machine").hits, u64::MAX);
}

#[test]
fn a_probe_comes_changes_and_goes() {
    let rig = Rig::new();
    let client = rig.client();
    let added = client.add(&one("kprobe:one")).expect("added");
    let id = added.id.expect("one");
    assert_eq!((added.ids, added.probes.len()), (vec![id], 1));
    assert!(added.pause.held_ns > 0);
    let id = id.to_string();

    let change = ChangeProbe {
        enabled: Some(false),
        name: Some("uno".to_owned()),
    };
    let changed = client.change(&id, &change).expect("changed");
    assert!(!changed.probes[0].enabled);
    assert_eq!(changed.probes[0].name.as_deref(), Some("uno"));
    assert_eq!(
        client.probe("uno").expect("by its name").probes,
        changed.probes
    );
    assert_eq!(client.stats("uno").expect("stats").probes.len(), 1);

    let removed = client.remove("uno").expect("removed");
    assert_eq!((removed.removed, removed.probes.len()), (1, 1));
    for gone in [id.as_str(), "uno"] {
        let Err(ClientError::Refused(problem)) = client.remove(gone) else {
            panic!("{gone} is still there")
        };
        assert!(problem.is(ProblemKind::NoSuchProbe), "{problem:?}");
    }
    assert_eq!(client.probes().expect("list"), []);
    let pauses = client.machine().expect("machine").pauses;
    // A request for a missing probe causes no pause.
    assert_eq!(
        (pauses.count, rig.straw.paused.load(Ordering::SeqCst)),
        (3, 0)
    );
}

#[test]
fn the_answer_to_a_post_says_where_the_probe_is() {
    let rig = Rig::new();
    let answer = rig.send("POST", "/probes", r#"{"spec": "kprobe:one"}"#);
    assert_eq!(answer.json(201)["id"], 1);
    assert!(answer.head.contains("location: /probes/1"), "{answer:?}");
    let shown = rig.get("/probes/1").json(200);
    assert_eq!(shown["probes"][0]["state"], "armed");
}

#[test]
fn a_probe_has_a_program() {
    let rig = Rig::new();
    let client = rig.client();
    let with = |spec: &str, filter: Option<&str>, aggregate: Option<&str>| AddProbe {
        filter: filter.map(str::to_owned),
        aggregate: aggregate.map(str::to_owned),
        ..AddProbe::new(spec)
    };
    let both = AddProbe {
        action: Some(ProbeAction::Count),
        ..with("kprobe:one", None, Some("hist(arg2)"))
    };
    let counted_with_stack = AddProbe {
        action: Some(ProbeAction::Count),
        stack: true,
        ..with("kprobe:one", None, None)
    };
    let variable = ProbeVariable {
        name: "n".to_owned(),
        declared: "long".to_owned(),
        operand: "8@%rdi".parse().ok(),
    };
    let counted_with_variables = AddProbe {
        action: Some(ProbeAction::Count),
        variables: vec![variable.clone()],
        ..with("kprobe:one", None, None)
    };
    let returns_with_variables = AddProbe {
        variables: vec![variable.clone()],
        ..with("kretprobe:one", None, None)
    };
    let too_many_variables = AddProbe {
        variables: vec![variable.clone(); 21],
        ..with("kprobe:one", None, None)
    };
    let long_variable = AddProbe {
        variables: vec![ProbeVariable {
            name: "n".repeat(261),
            ..variable.clone()
        }],
        ..with("kprobe:one", None, None)
    };
    const VARIABLES: &str =
        "`variables` are for the events of a probe at an instruction of the kernel";
    let wrong = [
        (
            long_variable,
            ProblemKind::Malformed,
            "/variables",
            "the name and the type of a variable have at most 260 bytes",
        ),
        (
            counted_with_variables,
            ProblemKind::Contradictory,
            "/variables",
            VARIABLES,
        ),
        (
            returns_with_variables,
            ProblemKind::Contradictory,
            "/variables",
            VARIABLES,
        ),
        (
            too_many_variables,
            ProblemKind::Malformed,
            "/variables",
            "a probe has at most 20 variables",
        ),
        (
            counted_with_stack,
            ProblemKind::Contradictory,
            "/stack",
            "`stack` is for events, and the probe has none",
        ),
        (
            with("kprobe:one", Some("arg0 = 5"), None),
            ProblemKind::NotAProgram,
            "/filter",
            "`arg0 = 5` is no filter: `=` is not a comparison at byte 5",
        ),
        (
            with("kprobe:one", None, Some("hist(arg2")),
            ProblemKind::NotAProgram,
            "/aggregate",
            "`hist(arg2` is no aggregate: it ends where `)` is expected",
        ),
        (
            with("kretprobe:one", None, Some("sum(arg2)")),
            ProblemKind::CannotProbe,
            "/aggregate",
            "cannot probe `kretprobe:one`: `arg2` is gone when the function has returned, which is when a return probe \
             takes its values",
        ),
        (
            both,
            ProblemKind::Contradictory,
            "/aggregate",
            "`action` and `aggregate` exclude each other",
        ),
    ];
    for (wrong, kind, pointer, detail) in wrong {
        let Err(ClientError::Refused(problem)) = client.add(&AddProbes::One(wrong)) else {
            panic!("{pointer} is refused")
        };
        assert!(problem.is(kind), "{problem:?}");
        assert_eq!(problem.pointer.as_deref(), Some(pointer));
        assert_eq!(problem.detail, detail);
    }
    let asked = with("kprobe:one", Some("arg0==5"), Some("hist( arg2 )"));
    let added = client.add(&AddProbes::One(asked)).expect("added");
    let probe = &added.probes[0];
    assert_eq!(probe.aggregate.as_deref(), Some("hist(arg2)"));
    assert_eq!(probe.summary.filter.as_deref(), Some("arg0 == 5"));
}

#[test]
fn an_array_is_all_or_nothing() {
    let rig = Rig::new();
    let client = rig.client();
    let named = |spec: &str, name: &str| AddProbe {
        name: Some(name.to_owned()),
        ..AddProbe::new(spec)
    };
    let wrong = [
        (
            AddProbe::new("kprobe:nothing"),
            ProblemKind::CannotProbe,
            "/1/spec",
        ),
        (
            AddProbe::new("kprobe:refused"),
            ProblemKind::CannotProbe,
            "/1/spec",
        ),
        (
            AddProbe::new("kprob:two"),
            ProblemKind::NotAProbe,
            "/1/spec",
        ),
        (named("kprobe:two", "7"), ProblemKind::Malformed, "/1/name"),
        (
            named("kprobe:two", "uno"),
            ProblemKind::NameTaken,
            "/1/name",
        ),
        (
            named("kprobe:many_*", "all"),
            ProblemKind::Contradictory,
            "/1/name",
        ),
    ];
    for (wrong, kind, pointer) in wrong {
        let asked = AddProbes::Many(vec![named("kprobe:one", "uno"), wrong]);
        let Err(ClientError::Refused(problem)) = client.add(&asked) else {
            panic!("{asked:?} is refused")
        };
        assert!(problem.is(kind), "{problem:?}");
        assert_eq!(problem.pointer.as_deref(), Some(pointer), "{problem:?}");
        assert_eq!(client.probes().expect("list"), [], "{asked:?}");
    }
    let asked = AddProbes::Many(vec![
        AddProbe::new("kprobe:many_*"),
        named("kprobe:one", "uno"),
    ]);
    let added = client.add(&asked).expect("added");
    assert_eq!((added.id, added.ids.len()), (None, 4));
    let named = client.probe("uno").expect("named");
    assert_eq!(named.probes[0].summary.probe, "kprobe:one");
    assert_eq!(client.remove_all().expect("removed").removed, 4);
    client
        .add(&AddProbes::One(AddProbe {
            name: Some("uno".to_owned()),
            ..AddProbe::new("kprobe:two")
        }))
        .expect("the name is free again");
}

#[test]
fn problems_have_the_messages_of_the_command_line() {
    let rig = Rig::new();
    let problem = rig
        .send("POST", "/probes", r#"{"spec": "kprob:vfs_read"}"#)
        .problem(422);
    assert_eq!(
        problem.detail,
        "`kprob:vfs_read` is not a probe: there is no probe kind `kprob`"
    );
    assert_eq!(problem.help.as_deref(), Some("did you mean `kprobe`?"));
    let problem = rig
        .send("POST", "/probes", r#"{"spec": "kprobe:x"}"#)
        .problem(422);
    assert_eq!(
        problem.detail,
        "cannot probe `kprobe:x`: the kernel has no symbol `x`"
    );
    assert_eq!(problem.help.as_deref(), Some("near names: one"));
    let pauses = rig.client().machine().expect("machine").pauses;
    assert_eq!(pauses.count, 0, "the guest does not stand for a mistake");
}

#[test]
fn address_is_refused_until_the_kernel_is_located() {
    let rig = Rig::new();
    rig.straw.located.store(false, Ordering::SeqCst);
    let asked = r#"[{"spec": "kprobe:one"}, {"spec": "kprobe:0xffffffff81000000"}]"#;
    let problem = rig.send("POST", "/probes", asked).problem(422);
    assert!(problem.detail.contains("may move"), "{problem:?}");
    assert_eq!(problem.pointer.as_deref(), Some("/1/spec"));
    assert_eq!(rig.client().probes().expect("list"), []);
}

#[test]
fn a_list_has_pages() {
    let rig = Rig::new();
    let client = rig.client();
    for _ in 0..4 {
        client.add(&one("kprobe:many_*")).expect("added");
    }
    let page = rig.get("/probes?limit=5").json(200);
    assert_eq!(
        (page["total"].as_u64(), page["next"].as_u64()),
        (Some(12), Some(5))
    );
    let page = rig.get("/probes?limit=10&after=5").json(200);
    assert_eq!(page["probes"].as_array().map(Vec::len), Some(7));
    assert_eq!(page["next"], serde_json::Value::Null);
    assert_eq!(client.probes().expect("list").len(), 12);
}

#[test]
fn knobs() {
    let rig = Rig::new();
    let client = rig.client();
    let set = |enabled, optimization| SetKnobs {
        enabled,
        optimization,
    };
    assert!(
        !client
            .set_knobs(&set(Some(false), None))
            .expect("set")
            .enabled
    );
    let knobs = client.set_knobs(&set(None, Some(false))).expect("set");
    assert!(!knobs.enabled && !knobs.optimization);
    let knobs = client.set_knobs(&set(Some(true), Some(true))).expect("set");
    assert!(knobs.enabled && knobs.optimization);
    let knobs = rig.get("/knobs").json(200);
    assert_eq!(
        (&knobs["enabled"], &knobs["optimization"]),
        (&true.into(), &true.into())
    );
}

#[test]
fn a_pause_lasts_and_changes_are_made_in_it() {
    let rig = Rig::new();
    let client = rig.client();
    assert_eq!(
        client.command("pause").expect("paused").state,
        MachineState::Paused
    );
    client.command("pause").expect("twice is once");
    let added = client.add(&one("kprobe:one")).expect("added");
    assert_eq!((added.pause.held_ns, added.pause.wait_ns), (0, 0));
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 1);
    assert_eq!(
        client.command("resume").expect("runs").state,
        MachineState::Running
    );
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 0);
}

#[test]
fn a_pause_does_not_outlast_the_machine() {
    let rig = Rig::new();
    let client = rig.client();
    client.command("pause").expect("paused");
    let machine = client.command("stop").expect("stopped");
    assert_eq!(machine.state, MachineState::Ending);
    let began = std::time::Instant::now();
    while rig.straw.paused.load(Ordering::SeqCst) != 0 {
        assert!(began.elapsed() < crate::rig::PATIENCE, "it is still paused");
        std::thread::yield_now();
    }
}

#[test]
fn symbols_and_memory() {
    let rig = Rig::new();
    let found = rig.get("/symbols?match=many_*&limit=2").json(200);
    assert_eq!(found["symbols"][0]["name"], "many_a");
    // The linked address plus the slide.
    assert_eq!(found["symbols"][0]["address"], "0xffffffff81000120");
    assert_eq!(found["more"], true);
    assert_eq!(rig.client().symbols("*").expect("all").symbols.len(), 6);
    let read = rig.get("/memory?gpa=0x1000&len=3").json(200);
    assert_eq!(
        (&read["bytes"], &read["encoding"]),
        (&"5a5a5a".into(), &"hex".into())
    );
    let read = rig
        .get("/memory?gpa=0x1000&len=3&encoding=base64")
        .json(200);
    assert_eq!(read["bytes"], "Wlpa");
    assert_eq!(
        rig.client().memory("gpa", MEMORY_AT, 1).expect("read").len,
        1
    );
    rig.get("/memory?gpa=0x10000000&len=3").problem(422);
    rig.get("/memory?gva=0xffffffff81000000&len=3").problem(422);
    for wrong in ["/memory?len=3", "/memory?gpa=0x1000&gva=0x1000&len=3"] {
        let problem = rig.get(wrong).problem(422);
        assert!(problem.is(ProblemKind::Contradictory), "{problem:?}");
    }
    for wrong in [
        "/memory?gpa=0x+1000&len=3",
        "/memory?gpa=0x1000&len=0",
        "/memory?gpa=0x1000&len=65537",
        "/memory?gpa=4096&len=1",
        "/memory?gpa=0x1000&len=1&encoding=text",
        "/memory?gpa=0x1000&len=1&length=1",
        "/symbols",
        "/symbols?match=x&limit=-1",
    ] {
        rig.get(wrong).problem(400);
    }
    let long = "x".repeat(257);
    rig.get(&format!("/symbols?match={long}")).problem(400);
}

#[test]
fn view_of_a_kernel_without_types_is_refused_with_the_reason() {
    let rig = Rig::new();
    for path in ["/tasks", "/tasks?threads=true", "/modules", "/log"] {
        let problem = rig.get(path).problem(422);
        assert!(problem.is(ProblemKind::CannotRead), "{problem:?}");
        assert!(
            problem.detail.contains("no type information (BTF)"),
            "{problem:?}"
        );
    }
    rig.get("/tasks?threads=1").problem(400);
}

#[test]
fn stacks_of_a_kernel_without_rules_are_refused_with_the_reason() {
    let rig = Rig::new();
    for path in ["/stacks", "/stacks?vcpu=1"] {
        let problem = rig.get(path).problem(422);
        assert!(problem.is(ProblemKind::CannotRead), "{problem:?}");
        assert!(problem.detail.contains("no ORC tables"), "{problem:?}");
    }
    for path in ["/stacks?tid=1", "/stacks?all=true"] {
        let problem = rig.get(path).problem(422);
        let types = "no type information (BTF)";
        assert!(problem.detail.contains(types), "{problem:?}");
    }
    for path in ["/stacks?vcpu=1&tid=2", "/stacks?tid=1&all=true"] {
        let problem = rig.get(path).problem(422);
        assert!(problem.is(ProblemKind::Contradictory), "{problem:?}");
    }
    rig.get("/stacks?vcpu=-1").problem(400);
}

#[test]
fn events_in_both_forms_from_any_number() {
    let mut rig = Rig::new();
    (1..=5).for_each(|n| rig.hub.event(note(n)));
    let lines = rig.client().events(Some(4)).expect("stream");
    rig.finish();
    let lines: Vec<_> = lines.map(|line| line.expect("line")).collect();
    let expected = [4, 5].map(|seq| EventLine::Event {
        seq,
        event: note(seq),
    });
    assert_eq!(lines, expected, "and then the end");

    let rig = Rig::new();
    (1..=5).for_each(|n| rig.hub.event(note(n)));
    let raw =
        b"GET /events?limit=1 HTTP/1.1\r\nhost: x\r\nlast-event-id: 2\r\nconnection: close\r\n\r\n";
    let answer = rig.raw(raw);
    assert!(answer.head.contains("text/event-stream"), "{answer:?}");
    assert!(
        answer
            .body
            .contains("id: 3\nevent: note\ndata: {\"seq\":3,"),
        "{answer:?}"
    );
    assert!(!answer.body.contains("id: 4"), "{answer:?}");
    rig.get("/events?from=x").problem(400);
    let raw = b"GET /events HTTP/1.1\r\nhost: x\r\nlast-event-id: x\r\nconnection: close\r\n\r\n";
    rig.raw(raw).problem(400);
}

#[test]
fn metrics_and_the_description() {
    let rig = Rig::new();
    rig.client().add(&one("kprobe:one")).expect("added");
    let metrics = rig.get("/metrics");
    assert!(
        metrics.head.contains("text/plain; version=0.0.4"),
        "{metrics:?}"
    );
    assert!(
        metrics.body.contains("hyprobe_probes{state=\"armed\"} 1\n"),
        "{metrics:?}"
    );
    let description = rig.get("/openapi.json").json(200);
    let described: serde_json::Value =
        serde_json::to_value(hyprobe_control::openapi()).expect("json");
    assert_eq!(description, described);
}

#[test]
fn unknown_paths_probes_and_methods_get_a_problem() {
    let rig = Rig::new();
    for path in ["/", "/probe", "/probes/1/x", "/machine/reboot"] {
        rig.get(path).problem(404);
    }
    for path in ["/probes/7", "/probes/x", "/probes/7/stats", "/probes/%ff"] {
        let status = if path.ends_with("ff") { 400 } else { 404 };
        rig.get(path).problem(status);
    }
    rig.send("PATCH", "/probes/7", "{}").problem(404);
    rig.send("DELETE", "/probes/7", "").problem(404);
    rig.send("PUT", "/probes", "{}").problem(405);
    rig.get("/machine/pause").problem(405);
}

#[test]
fn requests_fail_after_the_run_has_ended() {
    let mut rig = Rig::new();
    let client = rig.client();
    client.machine().expect("it is there");
    rig.finish();
    let error = client.machine().expect_err("it is gone");
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 0);
}

#[test]
fn states_of_straw_are_those_of_the_engine() {
    let rig = Rig::new();
    let added = rig.client().add(&one("kprobe:many_*")).expect("added");
    let armed = |probe: &ProbeStatus| probe.summary.state == ProbeState::Armed;
    assert!(added.probes.iter().all(armed));
}

#[test]
fn values_and_types_need_a_text_and_the_kernels_types() {
    let rig = Rig::new();
    for (path, status, word) in [
        ("/print", 400, "malformed"),
        ("/print?expr=one&depth=0", 400, "malformed"),
        ("/print?expr=one&depth=17", 400, "malformed"),
        ("/types", 400, "malformed"),
        ("/print?expr=", 422, "not-an-expression"),
        ("/print?expr=one.", 422, "not-an-expression"),
        ("/print?expr=one&type=%2A", 422, "not-an-expression"),
        // The fake machine's kernel has no BTF.
        ("/print?expr=one", 422, "cannot-evaluate"),
        ("/types?name=list_head", 422, "cannot-evaluate"),
    ] {
        let problem = rig.get(path).json(status);
        assert_eq!(
            problem["type"],
            format!("urn:hyprobe:problem:{word}"),
            "{path}: {problem}"
        );
    }
    let long = format!("/print?expr={}", "x".repeat(1025));
    let problem = rig.get(&long).json(400);
    assert_eq!(problem["detail"], "`expr` is longer than 1024 characters");
}
