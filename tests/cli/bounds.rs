//! Files and manifests beyond the limits: each is refused with a reason, and soon.

use std::fmt::Write as _;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::{Folder, kernel};

/// `lines`, each for a number below `count`.
fn repeated(count: usize, lines: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for number in 0..count {
        let _ = writeln!(text, "{}", lines(number));
    }
    text
}

#[test]
fn path_that_is_no_regular_file_is_refused_at_once() {
    let folder = Folder::new();
    mkfifoat(
        CWD,
        folder.0.path().join("fifo"),
        Mode::from_raw_mode(0o600),
    )
    .expect("a FIFO");
    for (path, what) in [
        ("fifo", "a FIFO or a pipe"),
        ("/dev/zero", "a device"),
        ("/proc", "a directory"),
    ] {
        let cause = format!(
            "\n  caused by: it is {what}, not a regular file: give a file with the contents"
        );
        folder.refuses(
            &["run", path],
            2,
            &format!("error: cannot read the manifest {path}{cause}"),
        );
        folder.refuses(
            &["run", "--kernel", path],
            2,
            &format!("error: cannot read the kernel {path}{cause}"),
        );
        folder.refuses(
            &["run", "--kernel", kernel(), "--initrd", path],
            2,
            &format!("error: cannot read the initrd {path}{cause}"),
        );
    }
}

#[test]
fn an_initrd_larger_than_the_guests_memory_is_not_read() {
    let folder = Folder::new();
    let file = std::fs::File::create(folder.0.path().join("initrd")).expect("file");
    // The file has no blocks: only the length is large.
    file.set_len(1 << 40).expect("length");
    folder.refuses(
        &[
            "run",
            "--kernel",
            kernel(),
            "--initrd",
            "initrd",
            "--memory",
            "64M",
        ],
        2,
        "\
error: cannot read the initrd initrd
  caused by: it has more than 67108864 bytes",
    );
}

#[test]
fn a_manifest_that_is_too_large_or_no_text_is_refused() {
    let folder = Folder::new();
    let file = std::fs::File::create(folder.0.path().join("large.toml")).expect("file");
    file.set_len((16 << 20) + 1).expect("length");
    folder.file("bytes.toml", b"[guest]\nkernel = \"\xff\"\n");
    folder.refuses(
        &["run", "large.toml"],
        2,
        "\
error: cannot read the manifest large.toml
  caused by: it has more than 16777216 bytes",
    );
    folder.refuses(
        &["run", "bytes.toml"],
        2,
        "\
error: the manifest bytes.toml is not UTF-8 text
  caused by: invalid utf-8 sequence of 1 bytes from index 18",
    );
}

#[test]
fn many_problems_are_counted_and_the_first_are_shown() {
    let folder = Folder::new();
    let probes = repeated(60_000, |number| {
        format!("[[probe]]\nat = \"wrong:{number}\"")
    });
    folder.file("run.toml", probes);
    let outcome = folder.hyprobe(&["run", "run.toml"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(
        outcome.stderr.ends_with("… and 59980 more\n"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("wrong:19"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("wrong:20"), "{}", outcome.stderr);
}

#[test]
fn more_tables_than_a_manifest_may_have_are_one_problem() {
    let folder = Folder::new();
    let of = |count: usize, table: &str| repeated(count, |_| table.to_owned());
    for (text, problem) in [
        (
            of(100_000, "[[probe]]\nat = \"kprobe:f\""),
            "there are 100000 [[probe]] tables",
        ),
        (
            of(20_000, "[[expect]]\nprobe = \"kprobe:f\"\nat_least = 1"),
            "there are 20000 [[expect]] tables",
        ),
        (
            of(1000, "[[probe]]\nat = \"kprobe:*\""),
            "there are 1000 [[probe]] tables with patterns",
        ),
        (
            of(
                400,
                "[[expect]]\norder = [\"kprobe:a\", \"kprobe:b\", \"kprobe:c\"]",
            ),
            "there are 1200 probes in [[expect]] tables",
        ),
    ] {
        folder.file("run.toml", text);
        let outcome = folder.hyprobe(&["run", "run.toml"]);
        assert_eq!(outcome.code, Some(2), "{problem}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(problem),
            "{problem}: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains("the maximum is"),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stderr.lines().count() < 20, "{}", outcome.stderr);
    }
}

/// The largest allowed manifest is read, and compared with the expectations, in the time of a test.
#[test]
fn a_manifest_at_its_limits_is_understood() {
    let folder = Folder::new();
    let probes = repeated(65_280, |number| {
        format!("[[probe]]\nat = \"kprobe:no_such_{number}\"\nfilter = \"cpu == 0\"")
    });
    let patterns = repeated(256, |number| {
        format!("[[probe]]\nat = \"kprobe:no_{number}*\"")
    });
    let expected = repeated(1024, |number| {
        format!("[[expect]]\nprobe = \"kprobe:x{number}\"\nat_least = 1")
    });
    let guest = format!("[guest]\nkernel = \"{}\"\n", kernel());
    folder.file("run.toml", [guest, probes, patterns, expected].concat());
    let outcome = folder.hyprobe(&["run", "run.toml"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(
        outcome
            .stderr
            .contains("the kernel has no symbol `no_such_0`"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn problem_in_a_long_line_is_described_in_words() {
    let folder = Folder::new();
    let blanks = " ".repeat(100_000);
    let key = "k".repeat(1_000_000);
    let ones = "1,".repeat(40_000);
    let lines = "\n".repeat(5000);
    for (text, told) in [
        (
            format!("[guest]\nkernel=\"x\"{blanks}y\n"),
            "run.toml:2:100011: this is not TOML",
        ),
        (
            format!("[guest]\n{key} = 1\n"),
            "run.toml:2:1: [guest] has no key `kkkk",
        ),
        (
            format!("probe = [{ones}]\n"),
            "run.toml:1:10: `probe` must be an array of tables",
        ),
        (
            format!("[run]\ntimeout = \"\"\"{lines}\"\"\"\n"),
            "run.toml:2:11: `timeout` is not usable",
        ),
    ] {
        folder.file("run.toml", text);
        let outcome = folder.hyprobe(&["run", "run.toml"]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(told), "{told}: {}", outcome.stderr);
        assert!(outcome.stderr.len() < 20_000, "{}", outcome.stderr.len());
    }
}

#[test]
fn a_long_pattern_is_refused() {
    let folder = Folder::new();
    let pattern = format!("kprobe:*[{}", "a".repeat(100_000));
    folder.file("run.toml", format!("[[probe]]\nat = \"{pattern}\"\n"));
    let outcome = folder.hyprobe(&["run", "run.toml"]);
    assert_eq!(outcome.code, Some(2));
    let reason = "it has 100009 bytes, and no name of a symbol has more than 640";
    assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
    assert!(outcome.stderr.len() < 1000, "{}", outcome.stderr.len());
}
