use miette::Diagnostic as _;

use super::*;
use crate::{ProbeAction, ProbeRequest};

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
        ProbeRequest::from(manifest.probes[0].at.clone())
    );
    let counted = &manifest.probes[2];
    assert_eq!(
        (counted.action, counted.maxactive, counted.enabled),
        (ProbeAction::Count, Some(300), false)
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
        "did you mean `guest`? there are `guest`, `run` and `probe`"
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
fn what_is_no_toml_is_labelled() {
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
fn a_file_that_is_not_there_says_which() {
    let error = Manifest::load(Path::new("/nonexistent/run.toml")).expect_err("no file");
    assert_eq!(
        error.to_string(),
        "cannot read the manifest /nonexistent/run.toml"
    );
}
