//! Lines of text for events.

use events::{
    Field, FieldValue, Fields, FrameSource, GuestString, GuestSummary, Hex, Hit, InlinedCall,
    Number, Param, ProgramFrame, Registers, Return, Summary, Typed,
};
use manifest::GuestEnd;

use super::*;

#[test]
fn text_of_the_guest_adds_no_line_and_no_escape() {
    let summary = Summary {
        accel: "kvm".to_owned(),
        guest: GuestSummary {
            end: GuestEnd::Panic,
            detail: Some("x\nall 3 expectations hold\x1b[2J".to_owned()),
            crash: None,
            vcpus: Vec::new(),
            log: None,
        },
        ran_ns: 0,
        probes: Vec::new(),
        dropped: 0,
        restarts: Vec::new(),
    };
    let note = Note {
        ts_ns: 0,
        probe: None,
        text: "module `a\nb`".to_owned(),
    };
    let events = [
        hit("kprobe:\x1b]0;f", "f\n  1.0  cpu0"),
        Event::Note(note),
        Event::Summary(summary),
    ];
    let mut out = Vec::new();
    let mut formatter = Formatter::new(Style::plain(), false);
    events
        .iter()
        .for_each(|event| formatter.event(event, &mut out));
    let text = String::from_utf8(out).expect("text");
    assert!(!text.contains('\x1b'), "{text}");
    // A line each, and an empty one before the summary.
    assert_eq!(text.lines().count(), 4, "{text}");
}

fn hit(probe: &str, symbol: &str) -> Event {
    Event::Hit(Hit {
        probe: probe.into(),
        ts_ns: 1_234_567_891,
        vcpu: 0,
        ip: Hex(0xffff_ffff_8139_a0c0),
        symbol: symbol.into(),
        regs: Registers::default(),
        args: [0xffff_ff9c, 1, 2, 3, 4, 5].map(Hex),
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

fn lines(formatter: &mut Formatter, events: &[Event]) -> String {
    let mut out = Vec::new();
    for event in events {
        formatter.event(event, &mut out);
    }
    String::from_utf8(out).expect("utf-8")
}

#[test]
fn hits_without_types_have_the_registers_of_arguments() {
    let events = [
        hit("kprobe:vfs_open", "vfs_open+0x0"),
        hit("kprobe:a+0x5", "a+0x5 [ext4]"),
        hit("kprobe:ext4:b", "b+0x0 [ext4]"),
    ];
    let text = lines(&mut Formatter::new(Style::plain(), false), &events);
    assert_eq!(
        text,
        "   1.234567  cpu0   vfs_open(0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n\
         \u{20}  1.234567  cpu0   a+0x5 [ext4](0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n\
         \u{20}  1.234567  cpu0   b [ext4](0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n"
    );
}

#[test]
fn mark_in_a_file_with_a_plus_in_its_name_is_whole() {
    let probe = "usdt:/lib/libstdc++.so.6:libstdcxx:throw";
    let Event::Hit(plain) = hit(probe, "libstdcxx:throw [/lib/libstdc++.so.6]") else {
        unreachable!("a hit")
    };
    let mark = Event::Hit(Hit {
        params: Some(Vec::new()),
        ..plain
    });
    let text = lines(&mut Formatter::new(Style::plain(), false), &[mark]);
    let expected = "   1.234567  cpu0   libstdcxx:throw [/lib/libstdc++.so.6]()\n";
    assert_eq!(text, expected);
}

#[test]
fn hit_with_variables_behind_the_entry_has_the_offset() {
    let shown = |symbol: &str| {
        let Event::Hit(plain) = hit("kprobe:f+0x165", symbol) else {
            unreachable!("a hit")
        };
        let with_variables = Event::Hit(Hit {
            params: Some(Vec::new()),
            ..plain
        });
        lines(
            &mut Formatter::new(Style::plain(), false),
            &[with_variables],
        )
    };
    for (symbol, expected) in [
        ("f+0x165", "f+0x165()"),
        ("f+0x165 [ext4]", "f+0x165 [ext4]()"),
        ("f+0x0", "f()"),
        ("f+0x4 [ext4]", "f [ext4]()"),
    ] {
        assert_eq!(
            shown(symbol),
            format!("   1.234567  cpu0   {expected}\n"),
            "{symbol}"
        );
    }
}

#[test]
fn fields_of_a_tracepoint_replace_the_arguments() {
    let Event::Hit(plain) = hit("tracepoint:sched:sched_switch", "__schedule+0x1f0") else {
        unreachable!("a hit")
    };
    let field = |name: &str, value| Field {
        name: name.into(),
        value,
    };
    let fields = vec![
        field("prev_comm", FieldValue::Text("swapper/0".to_owned())),
        field("prev_pid", FieldValue::Number(Number::Integer(0))),
    ];
    let params = vec![Param {
        name: "prev".into(),
        typed: Typed::without_value("struct task_struct *".into()),
    }];
    let with_fields = Event::Hit(Hit {
        fields: Some(Fields(fields)),
        params: Some(params.clone()),
        ..plain.clone()
    });
    let without = Event::Hit(Hit {
        params: Some(params),
        ..plain
    });
    let mut formatter = Formatter::new(Style::plain(), false);
    assert_eq!(
        lines(&mut formatter, &[with_fields, without]),
        "   1.234567  cpu0   sched:sched_switch(prev_comm=\"swapper/0\", prev_pid=0)\n\
         \u{20}  1.234567  cpu0   sched:sched_switch(prev=…)\n"
    );
}

#[test]
fn typed_hits_have_a_task_and_named_arguments() {
    let task = |comm: &str, tid| Task {
        tid,
        pid: tid,
        comm: comm.to_owned(),
        ..Task::default()
    };
    let typed = |ty: &str, value| Typed {
        value: Some(value),
        ..Typed::without_value(ty.into())
    };
    let Event::Hit(plain) = hit("kprobe:f", "f+0x0") else {
        unreachable!("a hit")
    };
    let hit = Event::Hit(Hit {
        task: Some(task("cat\x1b", 312)),
        params: Some(vec![
            Param {
                name: "name".into(),
                typed: Typed {
                    string: Some(GuestString::Whole("/etc/\x1b".to_owned())),
                    ..typed("const char *", Number::Hex(Hex(0x1000)))
                },
            },
            Param {
                name: "count".into(),
                typed: typed("size_t", Number::Integer(3)),
            },
        ]),
        ..plain
    });
    let returned = Event::Return(Return {
        probe: "kretprobe:f".into(),
        ts_ns: 2_000_000_000,
        took_ns: 31_200,
        vcpu: 0,
        ip: Hex(0),
        symbol: "f+0x0".into(),
        retval: Hex(0xffff_fffe),
        regs: Registers::default(),
        task: Some(task("a", 1)),
        returned: Some(Typed {
            error: Some("ENOENT".to_owned()),
            ..typed("int", Number::Integer(-2))
        }),
        depth: 1,
        stack: None,
        stack_incomplete: None,
        program_stack: None,
        program_stack_incomplete: None,
    });
    let text = lines(&mut Formatter::new(Style::plain(), false), &[hit, returned]);
    assert_eq!(
        text,
        "   1.234567  cpu0   cat\\x1b[312]  f(name=\"/etc/\\u{1b}\", count=3)\n\
         \u{20}  2.000000  cpu0   a[1]            f = -2 (ENOENT) after 31.2 µs\n"
    );
}

#[test]
fn registers_are_below_a_hit_if_wanted() {
    let mut formatter = Formatter::new(Style::plain(), false).with_registers(true);
    let text = lines(&mut formatter, &[hit("kprobe:f", "f+0x0")]);
    let below: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(below.len(), 6, "{text}");
    let indented = |row: &str| format!("{:11}{row}", "");
    assert_eq!(
        below[0],
        indented("rip 0x0000000000000000 rsp 0x0000000000000000 rflags 0x00000000")
    );
    assert_eq!(
        below[2],
        indented("rdx 0x0000000000000000 rsi 0x0000000000000000 rdi 0x0000000000000000")
    );
    let is_narrow = |row: &&str| row.len() <= 80;
    assert!(below.iter().all(is_narrow), "{text}");
    let words: Vec<&str> = below
        .iter()
        .flat_map(|row| row.split_whitespace())
        .collect();
    let is_register = |pair: &[&str]| !pair[0].starts_with("0x") && pair[1].starts_with("0x");
    assert_eq!(words.len(), 36, "{text}");
    assert!(words.chunks(2).all(is_register), "{text}");
}

#[test]
fn details_of_the_task_are_below_a_hit_if_wanted() {
    let Event::Hit(plain) = hit("kprobe:f", "f+0x0") else {
        unreachable!("a hit")
    };
    let hit = Event::Hit(Hit {
        task: Some(Task {
            tid: 8,
            pid: 8,
            comm: "cat".to_owned(),
            uid: Some(1000),
            cgroup: Some("/a\x1b".into()),
            ..Task::default()
        }),
        ..plain
    });
    let text = |registers| {
        let mut formatter = Formatter::new(Style::plain(), false).with_registers(registers);
        lines(&mut formatter, std::slice::from_ref(&hit))
    };
    let details = "                    uid 1000  cgroup /a\\x1b";
    assert_eq!(text(true).lines().nth(1), Some(details));
    assert_eq!(text(false).lines().count(), 1);
}

#[test]
fn stack_has_an_indented_line_for_each_frame() {
    let Event::Hit(plain) = hit("kprobe:f", "f+0x0") else {
        unreachable!("a hit")
    };
    let frame = |symbol: Option<&str>, module: Option<&str>| StackFrame {
        address: Hex(0xffff_ffff_a000_1000),
        symbol: symbol.map(str::to_owned),
        is_return_address: false,
        module: module.map(str::to_owned),
        build_id: None,
        source: None,
    };
    let hit = Event::Hit(Hit {
        stack: Some(vec![
            StackFrame {
                source: Some(Box::new(FrameSource {
                    file: Some("a.c".to_owned()),
                    line: 5,
                    inlined: vec![InlinedCall {
                        function: "leaf\x1b".to_owned(),
                        file: Some("leaf.h".to_owned()),
                        line: 4,
                    }],
                })),
                ..frame(Some("f+0x0/0x10"), None)
            },
            frame(Some("g+0x5/0x1a0"), Some("m\x1b")),
            frame(None, None),
        ]),
        stack_incomplete: Some("the stack cannot be read at 0x8".to_owned()),
        program_stack: Some(vec![ProgramFrame {
            address: Hex(0x40_1005),
            symbol: Some("main+0x5/0x90".to_owned()),
            file: Some("/bin/a\x1b".into()),
            offset: Some(Hex(0x1005)),
            by_frame_pointer: true,
        }]),
        program_stack_incomplete: Some("no file is mapped at 0x8".to_owned()),
        ..plain
    });
    let text = lines(&mut Formatter::new(Style::plain(), false), &[hit]);
    let frames: Vec<_> = text.lines().skip(1).collect();
    assert_eq!(
        frames,
        [
            "                    [inlined] leaf\\x1b leaf.h:4",
            "                    f+0x0/0x10 a.c:5",
            "                    g+0x5/0x1a0 [m\\x1b]",
            "                    0xffffffffa0001000",
            "                    … the stack cannot be read at 0x8",
            "                    ? main+0x5/0x90 (/bin/a\\x1b)",
            "                    … no file is mapped at 0x8",
        ]
    );
}

#[test]
fn a_system_call_has_its_own_name_and_not_that_of_its_function() {
    let returned = Event::Return(Return {
        probe: "retsyscall:openat".into(),
        ts_ns: 2_000_000_000,
        took_ns: 1_000,
        vcpu: 0,
        ip: Hex(0),
        symbol: "__x64_sys_openat+0x0".into(),
        retval: Hex(3),
        regs: Registers::default(),
        task: None,
        returned: None,
        depth: 0,
        stack: None,
        stack_incomplete: None,
        program_stack: None,
        program_stack_incomplete: None,
    });
    let events = [hit("syscall:openat", "__x64_sys_openat+0x0"), returned];
    let text = lines(&mut Formatter::new(Style::plain(), false), &events);
    assert_eq!(
        text,
        "   1.234567  cpu0   openat(0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n\
         \u{20}  2.000000  cpu0   openat = 0x3 after 1.0 µs\n"
    );
}

#[test]
fn a_note_names_its_probe() {
    let note = Event::Note(Note {
        ts_ns: 5_000,
        probe: Some("kprobe:x".to_owned()),
        text: "armed".to_owned(),
    });
    let text = lines(&mut Formatter::new(Style::plain(), true), &[note]);
    assert_eq!(text, ">>    0.000005  note   kprobe:x: armed\n");
}

#[test]
fn a_line_ends_at_the_edge_of_the_terminal() {
    let mut style = Style::plain();
    style.width = Some(60);
    let text = lines(
        &mut Formatter::new(style, false),
        &[hit("kprobe:vfs_open", "vfs_open+0x0")],
    );
    assert_eq!(text.trim_end().chars().count(), 60, "{text}");
    assert!(text.ends_with("…\n"), "{text}");
}

#[test]
fn access_to_watched_data_shows_the_values_and_the_instruction() {
    let Event::Hit(plain) = hit("watch:panic_timeout:4", "do_proc_dointvec+0x2f1") else {
        unreachable!("a hit")
    };
    let write = DataWrite {
        at: Hex(0xffff_ffff_82a0_c0a8),
        offset: 0,
        copy: None,
        bytes: 4,
        old: Hex(0),
        new: Hex(7),
    };
    let text = |hit| {
        lines(
            &mut Formatter::new(Style::plain(), false),
            &[Event::Hit(hit)],
        )
    };
    let written = text(Hit {
        write: Some(write),
        ..plain.clone()
    });
    let expected = "panic_timeout:4 = 0x7, was 0x0, by do_proc_dointvec+0x2f1\n";
    assert!(written.ends_with(expected), "{written}");
    let copy = text(Hit {
        write: Some(DataWrite {
            copy: Some(1),
            offset: 8,
            ..write
        }),
        ..plain.clone()
    });
    let expected = "panic_timeout:4+0x8 of cpu1 = 0x7, was 0x0, by do_proc_dointvec+0x2f1\n";
    assert!(copy.ends_with(expected), "{copy}");
    let read = text(Hit {
        read: Some(DataRead {
            at: write.at,
            offset: 8,
            copy: None,
            bytes: 4,
            value: Hex(7),
        }),
        ..plain
    });
    let expected = "panic_timeout:4+0x8 is 0x7, read by do_proc_dointvec+0x2f1\n";
    assert!(read.ends_with(expected), "{read}");
}
