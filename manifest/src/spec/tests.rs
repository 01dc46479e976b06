use super::*;

fn parsed(text: &str) -> ProbeSpec {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> (String, &str, Option<String>) {
    let error = text.parse::<ProbeSpec>().expect_err(text);
    (error.to_string(), &text[error.span.clone()], error.help())
}

#[test]
fn text_is_parsed_to_its_value() {
    let symbol = |name: &str, offset| Location::Symbol {
        name: name.to_owned(),
        offset,
    };
    let glob = |pattern: &str| Location::Glob(pattern.to_owned());
    for (text, module, location) in [
        ("kprobe:vfs_read", None, symbol("vfs_read", 0)),
        ("kprobe:vfs_read+0x1f", None, symbol("vfs_read", 0x1f)),
        ("kprobe:vfs_read+5", None, symbol("vfs_read", 5)),
        ("kprobe:vfs_read+0", None, symbol("vfs_read", 0)),
        ("kprobe:foo.isra.0", None, symbol("foo.isra.0", 0)),
        (
            "kprobe:0xffffffff81000000",
            None,
            Location::Address(Gva(0xffff_ffff_8100_0000)),
        ),
        ("kprobe:0x100000", None, Location::Address(Gva(0x10_0000))),
        ("kprobe:vfs_*", None, glob("vfs_*")),
        ("kprobe:vfs_?ead[a-z]", None, glob("vfs_?ead[a-z]")),
        (
            "kprobe:nf_tables:nft_do_chain",
            Some("nf_tables"),
            symbol("nft_do_chain", 0),
        ),
        ("kprobe:nf-tables:nft_*", Some("nf_tables"), glob("nft_*")),
        (
            "kprobe:fs/read_write.c:450",
            None,
            Location::Line {
                file: "fs/read_write.c".to_owned(),
                line: 450,
            },
        ),
        (
            "kprobe:vfs_read:inlined",
            None,
            Location::Inlined("vfs_read".to_owned()),
        ),
        (
            "kprobe:ext4:fs/ext4/file.c:12",
            Some("ext4"),
            Location::Line {
                file: "fs/ext4/file.c".to_owned(),
                line: 12,
            },
        ),
        (
            "kprobe:ext4:ext4_sb:inlined",
            Some("ext4"),
            Location::Inlined("ext4_sb".to_owned()),
        ),
        (
            "kprobe:nf-tables@00AB:nft_do_chain+0x5",
            Some("nf_tables@00ab"),
            symbol("nft_do_chain", 5),
        ),
    ] {
        let spec = parsed(text);
        assert_eq!(
            (
                spec.module.map(|module| module.to_string()).as_deref(),
                &spec.location
            ),
            (module, &location),
            "{text}"
        );
        let spec = parsed(text);
        assert_eq!(
            parsed(&spec.to_string()),
            spec,
            "{text} goes through its own text"
        );
    }
}

#[test]
fn the_text_is_in_one_form() {
    assert_eq!(
        parsed("kprobe:vfs_read+31").to_string(),
        "kprobe:vfs_read+0x1f"
    );
    assert_eq!(parsed("kprobe:vfs_read+0").to_string(), "kprobe:vfs_read");
    assert_eq!(
        parsed("kprobe:0XFFFFFFFF81000000").to_string(),
        "kprobe:0xffffffff81000000"
    );
}

#[test]
fn missing_kind_is_refused_with_the_known_kinds() {
    assert_eq!(
        refused("fexit:vfs_read"),
        (
            "this version has no fexit probes".into(),
            "fexit",
            Some(
                "there is: kprobe, kretprobe, syscall, retsyscall, tracepoint, watch, uprobe, uretprobe, usdt"
                    .into()
            )
        )
    );
    let help = |text| refused(text).2.expect("help");
    assert_eq!(
        help("tracepoint:syscalls:sys_enter_openat"),
        "write syscall:openat"
    );
    assert_eq!(help("tracepoint:syscalls:sys_exit_*"), "write retsyscall:*");
    assert_eq!(
        refused("kprob:vfs_read"),
        (
            "there is no probe kind `kprob`".into(),
            "kprob",
            Some("did you mean `kprobe`?".into())
        )
    );
    assert_eq!(
        refused("xyz:a").2,
        Some("there is: kprobe, kretprobe, syscall, retsyscall, tracepoint, watch, uprobe, uretprobe, usdt".into())
    );
    assert_eq!(
        refused("kretprobe:vfs_read+0x5").0,
        "a function returns once, wherever it is entered: a return probe has no offset"
    );
    assert_eq!(refused("vfs_read").2, Some("write kprobe:vfs_read".into()));
}

#[test]
fn span_covers_exactly_the_mistake() {
    for (text, spot) in [
        ("", ""),
        ("kprobe", "kprobe"),
        ("kprobe:", ""),
        ("kprobe::vfs_read", ""),
        ("kprobe:a:b:c", "b:c"),
        ("kprobe:ext4:0xffffffff81000000", "0xffffffff81000000"),
        ("kprobe:1234", "1234"),
        ("kprobe:0xffffffff8100000000", "0xffffffff8100000000"),
        ("kprobe:vfs read", " "),
        ("kprobe:vfs_réad", "é"),
        ("kprobe:vfs_read+", ""),
        ("kprobe:vfs_read+-5", "-5"),
        ("kprobe:vfs_read+5+6", "5+6"),
        ("kprobe:vfs_read+0x+5", "0x+5"),
        ("kprobe:vfs_*+5", "5"),
        ("kprobe:0xffffffff81000000+5", "5"),
        ("kprobe:+5", ""),
        ("kprobe:a.c:0", "0"),
        ("kprobe:a.c:+1", "+1"),
        ("kprobe:a.c:", ""),
        ("kprobe:a.c:vfs_read", "vfs_read"),
        ("kprobe:a b.c:1", " "),
        ("kprobe::inlined", ""),
        ("kprobe:vfs_*:inlined", "*"),
        ("kretprobe:a.c:1", "a.c:1"),
        ("kretprobe:vfs_read:inlined", "vfs_read:inlined"),
        ("syscall:openat+5", "openat+5"),
        ("retsyscall:openat+5", "openat+5"),
        ("syscall:0xffffffff81000000", "0xffffffff81000000"),
        ("syscall:openat:return", "openat:return"),
        ("syscall:*+5", "5"),
        ("tracepoint:sched", "sched"),
        ("tracepoint:sched:", "sched:"),
        ("tracepoint:a:b+5", "a:b+5"),
        ("tracepoint:a:b:c", "a:b:c"),
        ("tracepoint:a:b c", " "),
    ] {
        assert_eq!(refused(text).1, spot, "{text}");
    }
}

#[test]
fn decimal_addresses_get_a_hint() {
    assert_eq!(
        refused("kprobe:1234").2.as_deref(),
        Some("addresses are written in hexadecimal: 0x…")
    );
    assert_eq!(refused("kprobe:0xzz").2, None);
}

#[test]
fn json_holds_it_as_a_string() {
    let spec = parsed("kprobe:vfs_read+0x5");
    let json = serde_json::to_string(&spec).expect("serialise");
    assert_eq!(json, r#""kprobe:vfs_read+0x5""#);
    assert_eq!(
        serde_json::from_str::<ProbeSpec>(&json).expect("parse"),
        spec
    );
    let error = serde_json::from_str::<ProbeSpec>(r#""kprobe""#).expect_err("no place");
    assert!(error.to_string().contains("does not say where"), "{error}");
}

#[test]
fn names_belong_to_specifications() {
    let of = |spec: &str, name| spec.parse::<ProbeSpec>().expect(spec).stands_for(name);
    assert!(of("kprobe:vfs_read+5", "kprobe:vfs_read+0x5"));
    assert!(!of("kprobe:vfs_read", "kprobe:vfs_read+0x5"));
    assert!(!of("kprobe:vfs_read", "kprobe:vfs_readv"));
    assert!(!of("kprobe:vfs_read", "kretprobe:vfs_read"));
    assert!(of("kprobe:vfs_*", "kprobe:vfs_read"));
    assert!(!of("kprobe:vfs_*", "kretprobe:vfs_read"));
    for place in [
        "kprobe:vfs_read+0x5",
        "kprobe:vfs_read.cold",
        "kprobe:vfs_read.isra.0.cold",
        "kprobe:0xffffffff81000000",
        "kprobe:__pfx_vfs_read",
        "kprobe:__cfi_vfs_read",
    ] {
        assert!(!of("kprobe:*", place), "{place}");
    }
    assert!(!of("kprobe:vfs_*", "kprobe:xfs:vfs_read"));
    assert!(of("kprobe:xfs:vfs_*", "kprobe:xfs:vfs_read"));
    assert!(of("kprobe:a.c:5", "kprobe:a.c:5"));
    assert!(of("syscall:*", "syscall:openat"));
    assert!(!of("syscall:*", "retsyscall:openat"));
    assert!(of("retsyscall:openat", "retsyscall:openat"));
    assert!(of(
        "tracepoint:kmem:kfree",
        "tracepoint:kmem:kfree@kfree+0x4c"
    ));
    assert!(of("tracepoint:kmem:k*", "tracepoint:kmem:kfree"));
    assert!(!of("tracepoint:kmem:kfree", "tracepoint:kmem:kfree_x"));
    assert!(!of("tracepoint:kmem:*", "kprobe:kmem:kfree"));
    assert_eq!(
        parsed("tracepoint:sched:sched_switch").to_string(),
        "tracepoint:sched:sched_switch"
    );
}

#[test]
fn module_of_a_build_has_digits_behind_the_name() {
    for (text, spot) in [
        ("kprobe:ext4@:f", ""),
        ("kprobe:ext4@xy:f", "xy"),
        ("kprobe:@00:f", ""),
    ] {
        assert_eq!(refused(text).1, spot, "{text}");
    }
    let module = |text: &str| parsed(text).module.expect("a module");
    let of_build = module("kprobe:ext4@00ab:f");
    for (build_id, fits) in [
        (Some("00ab12"), true),
        (Some("00ab"), true),
        (Some("00ac12"), false),
        (Some("00a"), false),
        (None, false),
    ] {
        assert_eq!(of_build.is_of_build(build_id), fits, "{build_id:?}");
        assert!(module("kprobe:ext4:f").is_of_build(build_id));
    }
}

#[test]
fn watched_data_has_a_base_and_a_length() {
    let variable = |name: &str, offset| DataBase::Variable {
        name: name.to_owned(),
        offset,
    };
    let address = DataBase::Address(Gva(0xffff_ffff_82a0_c0a8));
    for (text, base, bytes, access, canonical) in [
        (
            "watch:jiffies",
            variable("jiffies", 0),
            None,
            WatchedAccess::Writes,
            "watch:jiffies",
        ),
        (
            "watch:init_task.thread_info.flags",
            variable("init_task.thread_info.flags", 0),
            None,
            WatchedAccess::Writes,
            "watch:init_task.thread_info.flags",
        ),
        (
            "watch:panic_timeout+2:2:w",
            variable("panic_timeout", 2),
            Some(2),
            WatchedAccess::Writes,
            "watch:panic_timeout+0x2:2",
        ),
        (
            "watch:0xffffffff82a0c0a8:8",
            address.clone(),
            Some(8),
            WatchedAccess::Writes,
            "watch:0xffffffff82a0c0a8:8",
        ),
        (
            "watch:0xffffffff82a0c0a8:4096:r",
            address.clone(),
            Some(4096),
            WatchedAccess::Reads,
            "watch:0xffffffff82a0c0a8:4096:r",
        ),
        (
            "watch:jiffies:rw",
            variable("jiffies", 0),
            None,
            WatchedAccess::Both,
            "watch:jiffies:rw",
        ),
        (
            "watch:0xffffffff82a0c0a8:4:hw",
            address,
            Some(4),
            WatchedAccess::HardwareWrites,
            "watch:0xffffffff82a0c0a8:4:hw",
        ),
    ] {
        let spec = parsed(text);
        assert_eq!((spec.kind, &spec.module), (ProbeKind::Watch, &None));
        assert_eq!(
            spec.location,
            Location::Data(WatchedData {
                base,
                bytes,
                access
            })
        );
        assert_eq!(spec.to_string(), canonical);
        assert_eq!(parsed(canonical), spec);
        assert_eq!(spec.location.is_address(), canonical.contains(":0x"));
        assert!(spec.stands_for(canonical) && !spec.stands_for("watch:other"));
    }
}

#[test]
fn watched_data_of_a_module_has_a_length() {
    let module = |name: &str, build: Option<&str>| ModuleSpec {
        name: name.to_owned(),
        build: build.map(str::to_owned),
    };
    for (text, wanted, name, access, canonical) in [
        (
            "watch:sch-htb:htb_hysteresis:4",
            module("sch_htb", None),
            "htb_hysteresis",
            WatchedAccess::Writes,
            "watch:sch_htb:htb_hysteresis:4",
        ),
        (
            "watch:m@00AB:_x.y:4:rw",
            module("m", Some("00ab")),
            "_x.y",
            WatchedAccess::Both,
            "watch:m@00ab:_x.y:4:rw",
        ),
    ] {
        let spec = parsed(text);
        assert_eq!(spec.module, Some(wanted));
        let data = WatchedData {
            base: DataBase::Variable {
                name: name.to_owned(),
                offset: 0,
            },
            bytes: Some(4),
            access,
        };
        assert_eq!(spec.location, Location::Data(data));
        assert_eq!(spec.to_string(), canonical);
        assert_eq!(parsed(canonical), spec);
    }
    // A length or an access follows a variable of the kernel.
    for text in ["watch:x:4:r", "watch:x:rw", "watch:0x10:4:r"] {
        assert_eq!(parsed(text).module, None, "{text}");
    }
    // A variable may be called as an access.
    let called = ["watch:m:r:4", "watch:m:w:4:rw", "watch:8021q:x:4"];
    assert!(called.iter().all(|text| parsed(text).module.is_some()));
}

#[test]
fn pattern_of_a_build_stands_for_matches_of_the_build() {
    let name = "kprobe:ext4@00ab:ext4_sync_fs";
    for (pattern, fits) in [
        ("kprobe:ext4@00ab:ext4_*", true),
        ("kprobe:ext4@00ac:ext4_*", false),
        ("kprobe:ext4:ext4_*", false),
        ("kprobe:xfs@00ab:ext4_*", false),
    ] {
        assert_eq!(parsed(pattern).stands_for(name), fits, "{pattern}");
    }
    assert!(!parsed("kprobe:ext4@00ab:ext4_*").stands_for("kprobe:ext4:ext4_sync_fs"));
}

#[test]
fn unsuitable_watchpoints_are_refused_with_a_remedy() {
    for (text, message, span, help) in [
        (
            "watch:0xffffffff82a0c0a8",
            "the length of the data at an address is not known",
            "0xffffffff82a0c0a8",
            Some("write watch:ADDRESS:8, for 8 bytes"),
        ),
        (
            "watch:x:4097",
            "`4097` is not a length of watched data: 1 to 4096 bytes",
            "4097",
            Some("write watch:NAME:8, or watch:NAME+OFFSET:8 for a part"),
        ),
        (
            "watch:x:4:wr",
            "`wr` is not an access: `w` for writes, `r` for reads, `rw` for both, `hw` for writes by a debug register",
            "wr",
            Some("write watch:NAME:8:rw"),
        ),
        (
            "watch:x:4:x",
            "`x` is not an access: `w` for writes, `r` for reads, `rw` for both, `hw` for writes by a debug register",
            "x",
            Some("write kprobe:SYMBOL or kprobe:0xADDRESS for executions"),
        ),
        (
            "watch:x:+4",
            "`+4` is not a length of watched data: 1 to 4096 bytes",
            "+4",
            Some("write watch:NAME:8, or watch:NAME+OFFSET:8 for a part"),
        ),
        (
            "watch:0x10+4:4",
            "an address has no offset",
            "4",
            Some("add it to the address"),
        ),
        (
            "watch:m:x",
            "`x` is not a length of watched data: 1 to 4096 bytes",
            "x",
            Some("write watch:NAME:8, or watch:MODULE:NAME:8 for data of a module"),
        ),
        (
            "watch:m:y:w",
            "the length of a module's variable is not known",
            "y:w",
            Some("write watch:MODULE:NAME:8, for 8 bytes"),
        ),
        (
            "watch:0x10:y:8",
            "`y` is not a length of watched data: 1 to 4096 bytes",
            "y",
            Some("write watch:NAME:8, or watch:MODULE:NAME:8 for data of a module"),
        ),
        (
            "watch:m.ko:y:8",
            "`m.ko` cannot be the name of a module",
            "m.ko",
            None,
        ),
        (
            "watch:x*",
            "`*` cannot be in the name of a symbol",
            "*",
            None,
        ),
        (
            "watchpoint:x",
            "there is no probe kind `watchpoint`",
            "watchpoint",
            Some("write watch"),
        ),
    ] {
        let (said, at, remedy) = refused(text);
        assert_eq!(
            (said.as_str(), at, remedy.as_deref()),
            (message, span, help)
        );
    }
}

#[test]
fn code_of_a_program_has_a_path_and_a_place() {
    let code = |text: &str| match parsed(text).location {
        Location::Program(code) => code,
        other => panic!("{other:?}"),
    };
    let symbol = |name: &str, offset| FilePlace::Symbol {
        name: name.to_owned(),
        offset,
    };
    let main = code("uprobe:/usr/bin/x:main");
    assert_eq!((&*main.path, main.place), ("/usr/bin/x", symbol("main", 0)));
    assert_eq!(code("uprobe:/x:main+16").place, symbol("main", 16));
    assert_eq!(code("uprobe:/x:0x1180").place, FilePlace::Offset(0x1180));
    assert_eq!(
        code("uprobe:/x:mem*").place,
        FilePlace::Glob("mem*".to_owned())
    );
    // A path may have colons and blanks.
    assert_eq!(code("uprobe:/a b:c:f").path, "/a b:c");
    for text in [
        "uprobe:/x:main",
        "uprobe:/x:main+0x10",
        "uprobe:/a:b:0x1180",
        "uprobe:/x:mem[cs]*",
        "uretprobe:/x:main",
        "uretprobe:/x:mem[cs]*",
    ] {
        assert_eq!(parsed(text).to_string(), text);
    }
}

#[test]
fn place_in_a_file_that_is_none_is_refused_with_the_notation() {
    let missing = "it does not say where in the file: the function or offset is missing";
    assert_eq!(refused("uprobe:/bin/x").0, missing);
    assert_eq!(refused("uprobe:/bin/x:").0, missing);
    assert_eq!(refused("uprobe:/bin/x:+5").0, missing);
    for path in ["bin/x", "/bin//x", "/bin/../x", "/x/", "/", "", "/a\nb"] {
        let text = format!("uprobe:{path}:main");
        let (problem, place, help) = refused(&text);
        assert!(
            problem.contains("is not the path of a file"),
            "{path}: {problem}"
        );
        assert_eq!(place, path);
        assert!(help.expect("help").contains("/proc/PID/maps"));
    }
    assert_eq!(
        refused("uprobe:/x:ma*+4").0,
        "a pattern has no offset: the same offset would be inside another instruction in each function"
    );
    assert_eq!(
        refused("uretprobe:/x:main+4").0,
        "a function returns once, wherever it is entered: a return probe has no offset"
    );
    assert_eq!(
        refused("uretprobe:/x:0x1180").0,
        "an offset in a file is no function: a return probe has the name of a function"
    );
    assert_eq!(refused("uprobe:/x:0x10+4").0, "an address has no offset");
    assert_eq!(refused("uprobe:/x:12").0, "`12` is not an address");
}

#[test]
fn marks_of_programs_have_a_provider_and_a_name() {
    let marks = |text| match parsed(text).location {
        Location::Program(ProgramCode {
            path,
            place: FilePlace::Marks(names),
        }) => (path, names.provider, names.name),
        other => panic!("{text}: {other:?}"),
    };
    let text = "usdt:/usr/bin/python3.11:python:function__entry";
    let named = ["/usr/bin/python3.11", "python", "function__entry"].map(str::to_owned);
    assert_eq!(<[String; 3]>::from(marks(text)), named);
    assert_eq!(parsed(text).to_string(), text);
    assert_eq!(marks("usdt:/a:b:c:*").0, "/a:b");
    assert_eq!(parsed("usdt:/a:c:x-y").kind, ProbeKind::Usdt);

    let missing = "it does not name the marks of the file: the provider or the name is missing";
    for text in ["usdt:/x", "usdt:/x:a", "usdt:/x::a", "usdt:/x:a:"] {
        let (error, _, help) = refused(text);
        assert_eq!(error, missing, "{text}");
        assert_eq!(help.as_deref(), Some("write usdt:PATH:PROVIDER:NAME"));
    }
    assert_eq!(refused("usdt:/x:a:b+4").1, "+");
    assert!(refused("usdt:x:a:b").0.starts_with("`x` is not the path"));
}

#[test]
fn watched_member_of_a_task_has_a_path_and_a_process() {
    let member = |path: &str, pid, bytes, access| WatchedData {
        base: DataBase::TaskMember {
            path: path.to_owned(),
            pid,
        },
        bytes,
        access,
    };
    for (text, wanted) in [
        (
            "watch:struct task_struct.static_prio@pid:1",
            member("static_prio", 1, None, WatchedAccess::Writes),
        ),
        (
            "watch:struct task_struct.se.vruntime@pid:4194303:rw",
            member("se.vruntime", 4_194_303, None, WatchedAccess::Both),
        ),
        (
            "watch:struct task_struct.comm@pid:17:4:r",
            member("comm", 17, Some(4), WatchedAccess::Reads),
        ),
    ] {
        let spec = parsed(text);
        assert_eq!(spec.module, None);
        assert_eq!(spec.location, Location::Data(wanted));
        assert_eq!(spec.to_string(), text);
    }
}

#[test]
fn watched_member_without_a_process_is_refused() {
    use SpecProblem::{BadProcess, MemberOfOther, NoLocation};
    let of = |text: &str| text.parse::<ProbeSpec>().expect_err(text).problem;
    for text in [
        "watch:struct task_struct.prio",
        "watch:struct task_struct@pid:1",
        "watch:struct cred.uid@pid:1",
        "watch:struct task_struct.prio@tid:1",
        "watch:struct task_struct.prio@pid",
    ] {
        assert_eq!(of(text), MemberOfOther, "{text}");
    }
    assert_eq!(of("watch:struct task_struct.@pid:1"), NoLocation);
    for number in ["", "0", "+1", "-1", "1x", "4194304", "99999999999"] {
        let text = format!("watch:struct task_struct.prio@pid:{number}");
        assert_eq!(of(&text), BadProcess(number.to_owned()), "{text}");
    }
}
