//! Probes at source lines and inlined copies of the test guest, compared with what the guest itself does and says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use guest_images::build_testguest;
use guest_images::testguest::Outcome;
use serde_json::Value;
use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/guest-images/testguest");
/// The guest's calls of `leave_frames`, and of each function.
const ROUNDS: u64 = 7;

/// The number of the line of `file` that is `text` without its indentation.
fn line(file: &str, text: &str) -> usize {
    let source = fs::read_to_string(Path::new(SOURCES).join(file)).expect("the source");
    let found = source.lines().position(|line| line.trim() == text);
    found.unwrap_or_else(|| panic!("{file} has no line `{text}`")) + 1
}

struct Ran {
    output: Output,
    console: Vec<u8>,
}

impl Ran {
    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The lines of the output.
    fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8_lossy(&self.output.stdout);
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect(line));
        lines.collect()
    }

    /// The hits of all probes together.
    fn hits(&self) -> u64 {
        let lines = self.lines();
        let summary = lines.last().unwrap_or_else(|| panic!("{}", self.stderr()));
        let probes = summary["probes"].as_array().expect("probes");
        assert!(!probes.is_empty());
        probes
            .iter()
            .map(|probe| probe["hits"].as_u64().expect("hits"))
            .sum()
    }

    /// The outcome that the guest prints.
    fn outcome(&self) -> Outcome {
        let outcome = Outcome::from_console(&String::from_utf8_lossy(&self.console));
        assert!(outcome.is_good(), "{outcome:?}: {}", self.stderr());
        outcome
    }
}

fn guest(folder: &TempDir) -> PathBuf {
    build_testguest(&folder.path().join("guest")).expect("the test guest compiles")
}

/// Runs the test guest with one probe, and with more `options`.
fn run(folder: &TempDir, spec: &str, options: &[&str]) -> Ran {
    let console = folder.path().join("console");
    let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .args([
            "run",
            "--accel",
            "kvm",
            "--memory",
            "64M",
            "--format",
            "json",
            "--timeout",
            "100s",
        ])
        .args([
            "--cmdline",
            &format!("run=calls={ROUNDS},leave={ROUNDS} exit=reset"),
        ])
        .arg("--kernel")
        .arg(folder.path().join("guest/testguest"))
        .arg("--console")
        .arg(&console)
        .args(["-p", spec])
        .args(options)
        .output()
        .expect("the command starts");
    Ran {
        console: fs::read(console).unwrap_or_default(),
        output,
    }
}

#[test]
fn line_is_hit_as_often_as_the_guest_executes_the_line() {
    let folder = tempfile::tempdir().expect("tempdir");
    guest(&folder);
    let call = line("leave.c", "leave_frames();");
    let ran = run(&folder, &format!("kprobe:leave.c:{call}"), &[]);
    let (_, fields) = ran.outcome().passed.pop().expect("a scenario");
    assert_eq!(ran.hits().to_string(), fields["calls"]);
    // The assembler's code: `nop`, the first instruction of a function that counts itself.
    let nop = line("functions.S", "FUNCTION fn_nop") + 1;
    let ran = run(&folder, &format!("kprobe:functions.S:{nop}"), &[]);
    assert_eq!(ran.hits(), ran.outcome().counts["fn_nop"]);
}

#[test]
fn inlined_copy_and_its_line_are_hit_as_often_as_the_guest_checks_a_call() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = guest(&folder);
    // The only caller of `check` calls it after each call of a function, and the compiler inlines it.
    let flags = "if ((after->rflags ^ before->rflags) & ~undefined_flags) {";
    let line = format!("kprobe:calls.c:{}", line("calls.c", flags));
    let given = ["--debug-info", path.to_str().expect("text")];
    for (spec, options) in [("kprobe:check:inlined", &[][..]), (line.as_str(), &given)] {
        let ran = run(&folder, spec, options);
        let outcome = ran.outcome();
        let (name, fields) = &outcome.passed[0];
        assert_eq!(name, "calls");
        let functions: u64 = fields["functions"].parse().expect("a number");
        assert_eq!(ran.hits(), ROUNDS * functions, "{spec}");
    }
}

#[test]
fn line_of_a_kernel_without_debug_information_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = guest(&folder);
    let whole = folder.path().join("whole");
    fs::copy(&path, &whole).expect("copied");
    let stripped = Command::new("strip")
        .arg("-g")
        .arg(&path)
        .status()
        .expect("strip, of binutils");
    assert!(stripped.success());
    let call = line("leave.c", "leave_frames();");
    let spec = format!("kprobe:leave.c:{call}");
    for (options, expected) in [
        (vec![], "without the kernel's debug information"),
        (
            vec!["--debug-info", whole.to_str().expect("text")],
            "which has no build-id",
        ),
        (
            vec!["--debug-info", path.to_str().expect("text")],
            "it has no section .debug_info",
        ),
        (
            vec!["--debug-info", "/dev/zero"],
            "it is a device, not a regular file",
        ),
    ] {
        let ran = run(&folder, &spec, &options);
        let told = ran.stderr();
        assert_eq!(ran.output.status.code(), Some(2), "{told}");
        assert!(told.replace('\n', " ").contains(expected), "{told}");
    }
}

#[test]
fn line_without_code_is_refused_with_the_next_line() {
    let folder = tempfile::tempdir().expect("tempdir");
    guest(&folder);
    let ran = run(&folder, "kprobe:leave.c:1", &[]);
    assert_eq!(ran.output.status.code(), Some(2), "{}", ran.stderr());
    assert!(
        ran.stderr().contains("leave.c has no code in line 1"),
        "{}",
        ran.stderr()
    );
}

/// Runs `hyprobe COMMAND m.toml` with the test guest in `folder`, and with `tables` in the manifest.
fn with_manifest(folder: &TempDir, command: &str, tables: &str) -> Output {
    with_options(folder, command, tables, &[])
}

/// As [`with_manifest`], with more `options`.
fn with_options(folder: &TempDir, command: &str, tables: &str, options: &[&str]) -> Output {
    let kernel = folder.path().join("guest/testguest");
    let manifest = format!(
        "[guest]\nkernel = {kernel:?}\nmemory = '64M'\ncmdline = 'run=calls={ROUNDS},leave={ROUNDS} exit=reset'\n\
         [run]\naccel = 'kvm'\ntimeout = '100s'\n{tables}"
    );
    fs::write(folder.path().join("m.toml"), manifest).expect("written");
    Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .current_dir(folder.path())
        .args([command, "m.toml"])
        .args(options)
        .output()
        .expect("the command starts")
}

/// The exit code, and all that the command has printed.
fn code_and_output(output: &Output) -> (Option<i32>, String) {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    (output.status.code(), texts.concat())
}

#[test]
fn expectation_about_a_line_is_judged_by_the_hits_of_its_place() {
    let folder = tempfile::tempdir().expect("tempdir");
    guest(&folder);
    let call = line("leave.c", "leave_frames();");
    for (count, expected) in [(ROUNDS, 0), (ROUNDS + 1, 1)] {
        let expect = format!("[[expect]]\nprobe = 'kprobe:leave.c:{call}'\nexactly = {count}\n");
        let (code, told) = code_and_output(&with_manifest(&folder, "test", &expect));
        assert_eq!(code, Some(expected), "{told}");
    }
}

#[test]
fn case_reads_the_named_debug_file() {
    let folder = tempfile::tempdir().expect("tempdir");
    let kernel = guest(&folder);
    // Behind Landlock's rules, the process can open the named file, and no other beside the kernel.
    fs::copy(&kernel, folder.path().join("whole")).expect("copied");
    let expect = "[[expect]]\nprobe = 'kprobe:check:inlined'\nat_least = 1\n";
    for (name, expected, words) in [
        ("whole", 0, "1 passed"),
        ("missing", 2, "cannot use the debug file missing"),
    ] {
        let output = with_options(&folder, "test", expect, &["--debug-info", name]);
        let (code, told) = code_and_output(&output);
        assert_eq!(code, Some(expected), "{told}");
        assert!(told.replace('\n', " ").contains(words), "{told}");
    }
}

#[test]
fn expectation_about_a_filtered_place_of_another_spelling_is_refused_with_both_spellings() {
    let folder = tempfile::tempdir().expect("tempdir");
    guest(&folder);
    let counted = "[[probe]]\nat = 'kprobe:check:inlined'\naction = 'count'\n";
    let (code, checked) = code_and_output(&with_manifest(&folder, "check", counted));
    assert_eq!(code, Some(0), "{checked}");
    let place = checked.split_whitespace().next().expect("a probe");
    // No call has such a number: with the filter, the probe is never hit.
    let filtered = format!("[[probe]]\nat = '{place}'\nfilter = 'arg2 == 0x123456789'\n");
    let never = "[[expect]]\nprobe = 'kprobe:check:inlined'\nnever = true\n";
    for command in ["check", "run", "test"] {
        let tables = format!("{filtered}{counted}{never}");
        let (code, told) = code_and_output(&with_manifest(&folder, command, &tables));
        assert_eq!(code, Some(2), "{command}: {told}");
        let told = told.replace("\n", " ");
        assert!(told.contains("is not all of"), "{command}: {told}");
        let both = format!("`{place}` is a place of `kprobe:check:inlined`");
        assert!(told.contains(&both), "{command}: {told}");
    }
}

#[test]
fn optional_expectation_is_skipped_without_the_place_and_without_the_debug_file() {
    let folder = tempfile::tempdir().expect("tempdir");
    let kernel = guest(&folder);
    let expect = |spec: &str| format!("[[expect]]\nprobe = '{spec}'\nnever = true\n");
    let optional = |spec: &str| expect(spec) + "optional = true\n";
    let (code, all) = code_and_output(&with_manifest(
        &folder,
        "test",
        &optional("kprobe:no_such_function:inlined"),
    ));
    assert_eq!(code, Some(0), "{all}");
    // The kernel has the place, and it is hit.
    let (code, all) = code_and_output(&with_manifest(
        &folder,
        "test",
        &optional("kprobe:check:inlined"),
    ));
    assert_eq!(code, Some(1), "{all}");
    let mut strip = Command::new("strip");
    let stripped = strip.arg("-g").arg(&kernel).status();
    assert!(stripped.expect("strip, of binutils").success());
    for (tables, expected) in [
        (optional("kprobe:check:inlined"), 0),
        (expect("kprobe:check:inlined"), 2),
    ] {
        let (code, all) = code_and_output(&with_manifest(&folder, "run", &tables));
        assert_eq!(code, Some(expected), "{all}");
        assert!(
            all.contains("without the kernel's debug information"),
            "{all}"
        );
    }
}

/// The values of `name` at all hits, in order; `None` if the event has the variable without a value.
fn values(ran: &Ran, name: &str) -> Vec<Option<Value>> {
    let hits = ran.lines().into_iter();
    let hits = hits.filter(|line| line["type"] == "hit");
    let value = |hit: Value| {
        let params = hit["params"].as_array().expect("variables").iter();
        let found = params.into_iter().find(|param| param["name"] == name);
        let found = found.unwrap_or_else(|| panic!("no `{name}`: {hit}"));
        found.get("value").cloned()
    };
    hits.map(value).collect()
}

#[test]
fn variables_of_a_line_have_the_guest_s_values() {
    let folder = tempfile::tempdir().expect("tempdir");
    guest(&folder);
    let call = line("leave.c", "leave_frames();");
    let ran = run(&folder, &format!("kprobe:leave.c:{call}"), &[]);
    assert!(ran.outcome().is_good());
    let number = |number: u64| Some(Value::from(number));
    let rounds: Vec<_> = (0..ROUNDS).map(number).collect();
    assert_eq!(values(&ran, "round"), rounds);
    assert_eq!(values(&ran, "rounds"), vec![number(ROUNDS); 7]);
}

#[test]
fn variable_of_an_inlined_copy_has_each_character_that_the_guest_writes() {
    let folder = tempfile::tempdir().expect("tempdir");
    guest(&folder);
    let ran = run(&folder, "kprobe:put_char:inlined", &[]);
    let written = values(&ran, "c").into_iter();
    let written: Vec<u8> = written
        .map(|c| {
            let c = c.expect("a value").as_i64().expect("a number");
            u8::try_from(c).expect("ASCII")
        })
        .collect();
    assert_eq!(
        String::from_utf8_lossy(&written),
        String::from_utf8_lossy(&ran.console)
    );
    assert!(!written.is_empty());
}
