use miette::Diagnostic as _;

use super::*;
use crate::{Action, ProbeConfig, Stealth, WhenFull};

fn parsed(text: &str) -> Manifest {
    Manifest::parse(text, "run.toml", Path::new("/etc/run")).unwrap_or_else(|error| {
        panic!("{error}: {:?}", error.problems());
    })
}

/// Each problem with the text under its label and its help.
fn refused(text: &str) -> Vec<(String, &str, String)> {
    let error = Manifest::parse(text, "run.toml", Path::new("")).expect_err(text);
    let spot = |problem: &Problem| {
        let (start, len) = (problem.span().offset(), problem.span().len());
        let help = problem
            .help()
            .map(|help| help.to_string())
            .unwrap_or_default();
        (problem.to_string(), &text[start..start + len], help)
    };
    error.problems().iter().map(spot).collect()
}

fn only(text: &str) -> (String, &str, String) {
    let mut problems = refused(text);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

#[test]
fn the_documented_manifest_is_one() {
    let text = r#"
        [guest]
        kernel = "vmlinuz"
        initrd = "/boot/initrd.gz"
        cmdline = "console=ttyS0"
        memory = "256M"
        cpus = 2
        boot = "bzimage"
        [run]
        accel = "nested"
        format = "json"
        output = "events.jsonl"
        console = "none"
        timeout = "60s"
        control = "run.sock"
        optimise = false
        when_full = "drop"
        stealth = "reads"
        [[probe]]
        at = "kprobe:do_sys_openat2"
        [[probe]]
        at = "kprobe:vfs_read+5"
        [[probe]]
        at = "kretprobe:vfs_write"
        action = "count"
        maxactive = 300
        enabled = false
    "#;
    let manifest = parsed(text);
    assert_eq!(
        manifest.guest,
        GuestSection {
            kernel: Some(KernelSource::File("/etc/run/vmlinuz".into())),
            initrd: Some(InitrdSource::File("/boot/initrd.gz".into())),
            modules: Vec::new(),
            cmdline: Some("console=ttyS0".to_owned()),
            memory_bytes: Some(256 << 20),
            cpus: Some(2),
            boot: Some(Boot::BzImage),
        }
    );
    assert_eq!(
        manifest.run,
        RunSection {
            accel: Some(Accel::Nested),
            format: Some(Format::Json),
            output: Some("/etc/run/events.jsonl".into()),
            console: Some(Console::None),
            timeout: Some(Duration::from_secs(60)),
            control: Some(Path::new("/etc/run/run.sock").into()),
            optimise: Some(false),
            when_full: Some(WhenFull::Drop),
            stealth: Some(Stealth::Reads),
        }
    );
    let probes: Vec<_> = manifest
        .probes
        .iter()
        .map(|probe| probe.at.to_string())
        .collect();
    assert_eq!(
        probes,
        [
            "kprobe:do_sys_openat2",
            "kprobe:vfs_read+0x5",
            "kretprobe:vfs_write"
        ]
    );
    assert_eq!(
        manifest.probes[0],
        ProbeConfig::from(manifest.probes[0].at.clone())
    );
    let counted = &manifest.probes[2];
    assert_eq!(
        (counted.action, counted.maxactive, counted.enabled),
        (Action::Count, Some(300), false)
    );
}

#[test]
fn nothing_has_to_be_there() {
    assert_eq!(parsed(""), Manifest::default());
    let guest = parsed("[guest]\nimage = 'debian-6.1'\nworkload = 'demo'\ncmdline = ''").guest;
    assert_eq!(
        guest.kernel,
        Some(KernelSource::Image("debian-6.1".to_owned()))
    );
    assert_eq!(guest.initrd, Some(InitrdSource::Workload(Workload::Demo)));
    assert_eq!(guest.cmdline.as_deref(), Some(""));
}

#[test]
fn an_unknown_key_is_labelled_and_the_right_one_offered() {
    let (message, spot, help) = only("[guest]\nkernl = 'vmlinuz'\n");
    assert_eq!(
        (message.as_str(), spot),
        ("[guest] has no key `kernl`", "kernl")
    );
    assert!(
        help.starts_with("did you mean `kernel`? there are `kernel`, `image`, "),
        "{help}"
    );

    let (_, spot, help) = only("[guset]\n");
    assert_eq!(spot, "guset");
    assert_eq!(
        help,
        "did you mean `guest`? there are `guest`, `run`, `probe`, `expect` and `inject`"
    );

    let (_, spot, help) = only("[run]\n'disk image' = 1\n");
    assert_eq!(spot, "'disk image'");
    assert!(help.starts_with("there are `accel`"), "{help}");
}

#[test]
fn everything_is_reported_in_the_order_of_the_text() {
    let problems = refused("[run]\ntimeout = '60'\n[guest]\nmemory = 256\ncpus = 'two'\nx = 1\n");
    let spots: Vec<_> = problems.iter().map(|(_, spot, _)| *spot).collect();
    assert_eq!(spots, ["'60'", "256", "'two'", "x"]);
}

#[test]
fn types_are_named() {
    let (message, spot, help) = only("[guest]\nmemory = 256\n");
    assert_eq!(
        (message.as_str(), spot),
        ("`memory` must be a string, not an integer", "256")
    );
    assert_eq!(
        help,
        "write it with a unit and in quotes: memory = \"256M\""
    );

    assert_eq!(
        only("guest = 5").0,
        "`guest` must be a table, not an integer"
    );
    let (message, _, help) = only("[probe]\nat = 'kprobe:x'\n");
    assert_eq!(message, "`probe` must be an array of tables, not a table");
    assert!(help.starts_with("write [[probe]]"), "{help}");
    assert_eq!(only("probe = ['kprobe:x']").1, "'kprobe:x'");
}

#[test]
fn values_are_checked() {
    let (message, spot, help) = only("[run]\naccel = 'nestd'\n");
    assert_eq!(
        (message.as_str(), spot),
        ("`accel` cannot be `nestd`", "'nestd'")
    );
    assert_eq!(
        help,
        "did you mean `nested`? it can be `auto`, `kvm` or `nested`"
    );

    assert_eq!(only("[guest]\ncpus = 0\n").1, "0");
    assert_eq!(
        only("[guest]\ncpus = 99999999999999999999\n").1,
        "99999999999999999999"
    );
    assert_eq!(only("[guest]\nkernel = ''\n").0, "`kernel` is empty");
    assert_eq!(only("[[probe]]\n").0, "[[probe]] needs the key `at`");
    let (message, spot, _) = only("[guest]\nkernel = 'a'\nimage = 'b'\n");
    assert_eq!(
        (message.as_str(), spot),
        ("`kernel` and `image` exclude each other", "'a'")
    );
}

#[test]
fn a_probe_is_labelled_inside_its_quotes() {
    for (text, spot) in [
        ("[[probe]]\nat = 'kprob:vfs_read'\n", "kprob"),
        ("[[probe]]\nat = \"kprobe:vfs_read+x\"\n", "x"),
        ("[[probe]]\nat = '''kprobe:vfs_*+5'''\n", "5"),
        (
            "[[probe]]\nat = \"kprob\\u0065:vfs_read+x\"\n",
            "\"kprob\\u0065:vfs_read+x\"",
        ),
    ] {
        assert_eq!(only(text).1, spot, "{text}");
    }
    assert_eq!(
        only("[[probe]]\nat = 'kprob:a'\n").2,
        "did you mean `kprobe`?"
    );
}

#[test]
fn a_probe_has_a_filter_and_an_aggregate() {
    let manifest = parsed(
        r#"
        [[probe]]
        at = "kprobe:vfs_read"
        filter = "arg2 > 4096 && cpu == 1"
        aggregate = "lhist(arg2, 0, 8192, 1024)"
        [[probe]]
        at = "kretprobe:vfs_read"
        filter = "arg2 == 1"
        action = "count"
        [[expect]]
        probe = "kretprobe:vfs_read"
        at_least = 1
        "#,
    );
    let [first, second] = &manifest.probes[..] else {
        panic!("{:?}", manifest.probes);
    };
    assert_eq!(first.filter, "arg2 > 4096 && cpu == 1".parse().ok());
    let lhist = "lhist(arg2, 0, 8192, 1024)".parse().expect("an aggregate");
    assert_eq!(first.action, Action::Aggregate(lhist));
    assert_eq!(second.action, Action::Count);
}

#[test]
fn stack_is_for_probes_with_events() {
    let manifest = parsed(
        "[[probe]]\nat = 'kretprobe:f'\nstack = true\n[[probe]]\nat = 'kprobe:f'\naction = 'count'\n",
    );
    let stacks = manifest.probes.iter().map(|probe| probe.stack);
    assert!(stacks.eq([true, false]));
    for action in ["action = 'count'", "aggregate = 'hist(arg0)'"] {
        let text = format!("[[probe]]\nat = 'kprobe:f'\nstack = true\n{action}\n");
        let (says, spot, _) = only(&text);
        assert_eq!(spot, "true", "{says}");
        assert!(says.contains("no events that could show a stack"), "{says}");
    }
}

#[test]
fn a_program_is_labelled_inside_its_quotes() {
    const PROBE: &str = "[[probe]]\nat = 'kprobe:f'\n";
    for (keys, spot, says) in [
        (
            "filter = 'arg0 = 5'",
            "=",
            "`filter` is not usable: `=` is not a comparison",
        ),
        ("filter = ''", "''", "`filter` is empty"),
        (
            "aggregate = 'hist(arg7)'",
            "arg7",
            "`aggregate` is not usable: `arg7` is not in a register: only arg0 to arg5 are",
        ),
        (
            "aggregate = 'sum(arg0)'\naction = 'count'",
            "'count'",
            "`action` and `aggregate` exclude each other",
        ),
    ] {
        let text = format!("{PROBE}{keys}\n");
        let (message, found, _) = only(&text);
        assert_eq!((found, message.as_str()), (spot, says), "{keys}");
    }
    let gone = "[[probe]]\nat = 'kretprobe:f'\naggregate = 'sum(arg0)'\n";
    let (message, spot, help) = only(gone);
    assert_eq!(spot, "'sum(arg0)'");
    assert!(message.contains("`arg0` is gone"), "{message}");
    assert_eq!(
        help,
        "retval is what it has returned; for `arg0`, write a kprobe"
    );
}

#[test]
fn expectation_of_a_probe_with_a_program_is_unambiguous() {
    let wrong = |probes: &str, expected: &str| {
        let text = format!("{probes}[[expect]]\n{expected}\n");
        let error = Manifest::parse(&text, "run.toml", Path::new("")).err()?;
        let [problem] = error.problems() else {
            panic!("{error:?}");
        };
        Some(problem.to_string())
    };
    let filtered = "[[probe]]\nat = 'kprobe:f'\nfilter = 'arg0 == 1'\n";
    let summed = "[[probe]]\nat = 'kprobe:f'\naggregate = 'sum(arg0)'\n";
    assert_eq!(wrong(filtered, "probe = 'kprobe:f'\nnever = true"), None);
    assert_eq!(wrong(filtered, "probe = 'kprobe:g'\nnever = true"), None);
    assert_eq!(wrong(summed, "probe = 'kprobe:f'\nexactly = 3"), None);
    assert_eq!(
        wrong(summed, "probe = 'kprobe:f'\nnever = true").as_deref(),
        Some("[[expect]] needs each hit of `kprobe:f`, and an aggregate keeps none")
    );
    let twice = format!("{filtered}[[probe]]\nat = 'kprobe:f'\n");
    for (probes, expected) in [(filtered, "kprobe:f*"), (&twice, "kprobe:f")] {
        let message = wrong(probes, &format!("probe = '{expected}'\nexactly = 3"));
        let says = format!(
            "[[expect]] is about `{expected}`, which the probe `kprobe:f` with its program is not all of"
        );
        assert_eq!(message, Some(says));
    }
}

#[test]
fn invalid_toml_is_labelled() {
    let (message, spot, _) = only("[guest\nkernel = 'a'\n");
    assert_eq!(message, "this is not TOML");
    assert!(spot.len() <= 1, "{spot}");
}

#[test]
fn no_text_makes_it_panic() {
    for text in [
        "\0",
        "[[probe]]\nat=\"\\u0000\"",
        "a.b.c.d = [[[[1]]]]",
        "=",
        "[[guest]]",
        "\u{feff}",
    ] {
        let _ = Manifest::parse(text, "x", Path::new(""));
    }
}

#[test]
fn missing_file_is_named() {
    let error = Manifest::load(Path::new("/nonexistent/run.toml")).expect_err("no file");
    assert_eq!(
        error.to_string(),
        "cannot read the manifest /nonexistent/run.toml"
    );
}

fn expectations(tables: &str) -> Vec<String> {
    let manifest = parsed(tables);
    let said = manifest.expectations.iter().map(ToString::to_string);
    said.collect()
}

#[test]
fn expectations_are_described_in_words() {
    let said = expectations(
        r#"
        [[expect]]
        console = "login:"
        before = "30s"
        [[expect]]
        console = "BUG|Oops"
        never = true
        stop = true
        [[expect]]
        probe = "kprobe:panic"
        never = true
        [[expect]]
        name = "it reads"
        probe = "kprobe:vfs_read"
        at_least = 3
        [[expect]]
        order = ["kprobe:a", "kretprobe:b"]
        [[expect]]
        probe = "kretprobe:f"
        never_negative = "int"
        [[expect]]
        probe = "kprobe:f"
        seen = 0xffffffffffffffff
        in = "arg1"
        [[expect]]
        probe = "watch:panic_timeout"
        only = [0, 0x10, -1]
        [[expect]]
        probe = "watch:panic_timeout:r"
        only_by = ["proc_*", "panic"]
        [[expect]]
        end = "poweroff"
        "#,
    );
    assert_eq!(
        said,
        [
            "the console says /login:/ within 30s",
            "the console never says /BUG|Oops/",
            "kprobe:panic is never hit",
            "it reads",
            "kprobe:a, then kretprobe:b",
            "kretprobe:f never returns a negative number",
            "kprobe:f is given -1 as argument 1 once",
            "watch:panic_timeout has only the values 0, 16, -1",
            "watch:panic_timeout:r is accessed only by proc_*, panic",
            "the guest ends by poweroff",
        ]
    );
}

#[test]
fn expectations_that_mean_nothing_are_refused() {
    let message = |table: &str| only(&format!("[[expect]]\n{table}\n")).0;
    assert_eq!(message("name = 'x'"), "[[expect]] says nothing");
    assert_eq!(
        message("console = 'x'\nend = 'reset'"),
        "`console` and `end` exclude each other"
    );
    assert_eq!(
        message("probe = 'kprobe:f'"),
        "[[expect]] does not say what is expected of the probe"
    );
    assert_eq!(
        message("probe = 'kprobe:f'\nnever = true\nat_most = 3"),
        "`never` and `at_most` exclude each other"
    );
    assert_eq!(
        message("console = 'x'\nat_least = 1"),
        "[[expect]] has no use for `at_least` beside `console`"
    );
    assert_eq!(
        message("console = '('"),
        "`console` is not a regular expression"
    );
    assert_eq!(message("end = 'exploded'"), "`end` cannot be `exploded`");
    assert_eq!(
        message("probe = 'kprobe:f'\nat_least = -1"),
        "`at_least` cannot be -1"
    );
    assert_eq!(
        message("order = ['kprobe:a']"),
        "[[expect]] puts fewer than two probes in order"
    );
    for table in [
        "probe = 'kprobe:f'\nnever_negative = 'int'",
        "probe = 'kretprobe:f'\nnever_negative = 'short'",
        "probe = 'kprobe:f'\nseen = 1\nin = 'arg6'",
        "probe = 'kprobe:f'\nseen = 1\nin = 'return'",
        "probe = 'kprobe:f+4'\nseen = 1\nin = 'arg0'",
        "order = ['kprobe:a', 'kprob:b']",
        "probe = 'kprobe:f'\nonly = [1]",
        "probe = 'kprobe:f'\nonly_by = ['f']",
        "probe = 'watch:x'\nonly = []",
        "probe = 'watch:x'\nonly = ['1']",
        "probe = 'watch:x'\nonly = 1",
        "probe = 'watch:x'\nonly_by = []",
        "probe = 'watch:x'\nonly_by = ['f', '']",
        "probe = 'watch:x:9'\nonly = [1]",
        "probe = 'watch:x'\nonly = [1]\nonly_by = ['f']",
    ] {
        message(table);
    }
}

#[test]
fn injections_are_read() {
    let manifest = parsed(
        r#"
        [[inject]]
        at = "kmem_cache_alloc"
        on_hit = 1000
        return = 0
        [[inject]]
        at = "kprobe:__x64_sys_rename"
        every = 3
        return = -5
        when = { comm = "mv" }
        "#,
    );
    assert_eq!(
        manifest.injections,
        [
            Injection {
                at: "kprobe:kmem_cache_alloc".parse().expect("a probe"),
                due: crate::Due::OnHit(1000),
                value: 0,
                comm: None,
            },
            Injection {
                at: "kprobe:__x64_sys_rename".parse().expect("a probe"),
                due: crate::Due::Every(3),
                value: (-5_i64).cast_unsigned(),
                comm: Some("mv".to_owned()),
            },
        ]
    );
}

#[test]
fn injections_that_mean_nothing_are_refused() {
    let message = |table: &str| only(&format!("[[inject]]\n{table}\n")).0;
    assert_eq!(message("at = 'f'"), "[[inject]] needs the key `return`");
    assert_eq!(
        message("at = 'f'\nreturn = 0\non_hit = 1\nevery = 2"),
        "`on_hit` and `every` exclude each other"
    );
    assert_eq!(
        message("at = 'f'\nreturn = 0\nevery = 0"),
        "`every` cannot be 0"
    );
    for at in ["f+5", "kretprobe:f", "0xffffffff81000000"] {
        let text = format!("[[inject]]\nat = '{at}'\nreturn = 0\n");
        let (message, spot, _) = only(&text);
        assert!(
            message.starts_with("[[inject]] needs a function"),
            "{message}"
        );
        assert_eq!(spot, format!("'{at}'"));
    }
    let long = message("at = 'f'\nreturn = 0\nwhen = { comm = 'a-name-of-17-chars' }");
    assert_eq!(long, "`when` names no task: names have 15 bytes at most");
    // The position is a position of the written text.
    assert_eq!(only("[[inject]]\nat = 'f!'\nreturn = 0\n").1, "!");
}
