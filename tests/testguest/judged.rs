//! `hyprobe test` on this host's KVM: expectations that hold, and a broken expectation of each kind.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Calls `fn_nop` three times and resets.
const GUEST: &str = "cmdline = 'run=calls=3 exit=reset'";

/// The result of `hyprobe test`.
struct Tested {
    code: Option<i32>,
    /// By the name of the manifest.
    cases: BTreeMap<String, Value>,
    junit: String,
    stderr: String,
    folder: tempfile::TempDir,
}

/// Writes manifests into a folder, each with a name, a guest, and the text below the guest.
fn write(manifests: &[(&str, &str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    let kernel = guest_images::build_testguest(&folder.path().join("guest"));
    let kernel = kernel.expect("the test guest compiles");
    let manifests_dir = folder.path().join("manifests");
    std::fs::create_dir(&manifests_dir).expect("mkdir");
    for (name, guest, below) in manifests {
        let text = format!(
            "[guest]\nkernel = {kernel:?}\nmemory = '64M'\n{guest}\n[run]\ntimeout = '100s'\naccel = 'kvm'\n{below}"
        );
        std::fs::write(manifests_dir.join(format!("{name}.toml")), text).expect("write");
    }
    folder
}

/// Tests them.
fn test(manifests: &[(&str, &str, &str)], options: &[&str]) -> Tested {
    let folder = write(manifests);
    let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .current_dir(folder.path())
        .args(["test", "manifests", "--json", "--junit", "junit.xml"])
        .args(options)
        .output()
        .expect("the command starts");
    let stdout = String::from_utf8(output.stdout).expect("utf-8");
    let cases = stdout.lines().map(|line| {
        let case: Value = serde_json::from_str(line).expect(line);
        let name = case["name"].as_str().expect("a name").to_owned();
        (name.trim_start_matches("manifests/").to_owned(), case)
    });
    Tested {
        code: output.status.code(),
        cases: cases.collect(),
        junit: std::fs::read_to_string(folder.path().join("junit.xml")).unwrap_or_default(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        folder,
    }
}

/// Asserts that the JUnit file matches the schema.
fn assert_is_valid(text: &str) {
    const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/testguest/junit.xsd");
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("junit.xml");
    std::fs::write(&file, text).expect("written");
    let checked = Command::new("xmllint")
        .args(["--noout", "--nonet", "--schema", SCHEMA])
        .arg(&file)
        .output()
        .expect("xmllint, of the package libxml2-utils");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}{text}");
}

/// Asserts the structure and the attributes expected by JUnit's readers: `testsuites` of `testsuite` of `testcase`.
fn assert_is_junit(text: &str, cases: usize, failures: usize, errors: usize) {
    assert_is_valid(text);
    let document = roxmltree::Document::parse(text).expect("XML");
    let number = |node: roxmltree::Node<'_, '_>, name| {
        let value = node
            .attribute(name)
            .unwrap_or_else(|| panic!("no {name} in {text}"));
        value
            .parse::<f64>()
            .unwrap_or_else(|_| panic!("{name} is {value}"))
    };
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let suites: Vec<_> = root
        .children()
        .filter(roxmltree::Node::is_element)
        .collect();
    assert_eq!(suites.len(), 1);
    for node in [root, suites[0]] {
        assert_eq!(number(node, "tests"), cases as f64);
        assert_eq!(number(node, "failures"), failures as f64);
        assert_eq!(number(node, "errors"), errors as f64);
        assert!(number(node, "time") > 0.0);
        assert_eq!(node.attribute("name"), Some("hyprobe"));
    }
    assert_eq!(suites[0].tag_name().name(), "testsuite");
    let found: Vec<_> = suites[0]
        .children()
        .filter(roxmltree::Node::is_element)
        .collect();
    assert_eq!(found.len(), cases);
    let mut failed = 0;
    for case in found {
        assert_eq!(case.tag_name().name(), "testcase");
        for attribute in ["name", "classname"] {
            assert!(
                case.attribute(attribute)
                    .is_some_and(|text| !text.is_empty())
            );
        }
        assert!(number(case, "time") > 0.0);
        let mut rank = 0;
        for child in case.children().filter(roxmltree::Node::is_element) {
            // The elements of a failure come before the printed output.
            let here = match child.tag_name().name() {
                "failure" | "error" => 1,
                "rerunFailure" | "rerunError" | "flakyFailure" | "flakyError" => 2,
                "system-out" => 3,
                other => panic!("{other} in a testcase"),
            };
            assert!(here >= rank, "{text}");
            rank = here;
            if here == 1 {
                failed += 1;
                assert!(
                    child
                        .attribute("message")
                        .is_some_and(|text| !text.is_empty())
                );
            }
        }
    }
    assert_eq!(failed, failures + errors);
}

const HOLD: &str = "
    [[expect]]
    console = 'calls ok'
    [[expect]]
    console = 'Oops'
    never = true
    [[expect]]
    probe = 'kprobe:fn_nop'
    exactly = 3
    [[expect]]
    probe = 'kprobe:fn_nop'
    at_least = 3
    before = '100s'
    [[expect]]
    probe = 'kprobe:fn_n?p'
    at_most = 3
    [[expect]]
    end = 'reset'
    [[expect]]
    probe = 'kprobe:no_such_function'
    never = true
    optional = true
";

/// A broken expectation of each kind, with words of the reason.
const BROKEN: [(&str, &str, &str); 9] = [
    ("console", "console = 'login:'", "there was no such line"),
    (
        "console-never",
        "console = 'calls ok'\nnever = true",
        "it says: ",
    ),
    ("at-least", "probe = 'kprobe:fn_nop'\nat_least = 4", ": 3"),
    ("at-most", "probe = 'kprobe:fn_nop'\nat_most = 2", ": 3"),
    ("exactly", "probe = 'kprobe:fn_nop'\nexactly = 2", ": 3"),
    ("never", "probe = 'kprobe:fn_nop'\nnever = true", "hit at "),
    (
        "order",
        "order = ['kprobe:end_run', 'kprobe:fn_nop']",
        "kprobe:fn_nop came before kprobe:end_run",
    ),
    (
        "seen",
        "probe = 'kretprobe:fn_nop'\nseen = 0x123456",
        "it is in none of 3 returns",
    ),
    ("end", "end = 'poweroff'", "it ended by reset"),
];

#[test]
fn run_with_fulfilled_expectations_passes() {
    let tested = test(&[("hold", GUEST, HOLD)], &[]);
    assert_eq!(
        tested.code,
        Some(0),
        "{:?}\n{}",
        tested.cases,
        tested.stderr
    );
    let case = &tested.cases["hold"];
    assert_eq!(case["outcome"], "passed");
    assert_eq!(case["expectations"].as_array().map(Vec::len), Some(6));
    assert_is_junit(&tested.junit, 1, 0, 0);
    assert!(!tested.folder.path().join("hyprobe-artifacts").exists());
}

/// The test guest does not report the current processor, so the filters use hyprobe's own number of the vCPU.
const PROGRAMS: &str = "
    [[probe]]
    at = 'kprobe:fn_nop'
    filter = 'cpu == 0 && rsp != 0'
    [[expect]]
    probe = 'kprobe:fn_nop'
    exactly = 3
    [[probe]]
    at = 'kprobe:end_run'
    filter = 'cpu == 1'
    [[expect]]
    probe = 'kprobe:end_run'
    never = true
    [[probe]]
    at = 'kretprobe:fn_nop'
    aggregate = 'hist(cpu)'
    [[expect]]
    probe = 'kretprobe:fn_nop'
    exactly = 3
";

#[test]
fn expectations_of_a_filtered_probe_count_accepted_hits() {
    let tested = test(&[("programs", GUEST, PROGRAMS)], &[]);
    let said = format!("{:?}\n{}", tested.cases, tested.stderr);
    assert_eq!(tested.code, Some(0), "{said}");
    let expectations = &tested.cases["programs"]["expectations"];
    assert_eq!(expectations.as_array().map(Vec::len), Some(3), "{said}");
}

#[test]
fn one_broken_expectation_of_each_kind_fails() {
    let tables: Vec<_> = BROKEN
        .iter()
        .map(|(name, table, _)| (*name, format!("[[expect]]\n{table}\n")))
        .collect();
    let manifests: Vec<_> = tables
        .iter()
        .map(|(name, table)| (*name, GUEST, table.as_str()))
        .collect();
    let tested = test(&manifests, &[]);
    assert_eq!(tested.code, Some(1), "{}", tested.stderr);
    assert_eq!(tested.cases.len(), BROKEN.len());
    for (name, _, why) in BROKEN {
        let case = &tested.cases[name];
        assert_eq!(case["outcome"], "failed", "{case}");
        let reasons = case["reasons"].as_array().expect("reasons");
        assert_eq!(reasons.len(), 1, "{case}");
        let reason = reasons[0].as_str().expect("text");
        assert!(reason.contains(why), "{name}: {reason}");
        let kept = tested
            .folder
            .path()
            .join("hyprobe-artifacts/manifests-")
            .display()
            .to_string();
        let console = std::fs::read_to_string(format!("{kept}{name}/console.log"));
        assert!(console.expect("kept").contains("calls"), "{name}");
    }
    assert_is_junit(&tested.junit, BROKEN.len(), BROKEN.len(), 0);
}

#[test]
fn a_fault_is_injected_and_seen() {
    let below = "
        [[inject]]
        at = 'fn_nop'
        return = -5
        on_hit = 1
        [[expect]]
        probe = 'kretprobe:fn_nop'
        seen = -5
        [[expect]]
        probe = 'kretprobe:fn_nop'
        never_negative = 'long'
    ";
    let tested = test(&[("inject", GUEST, below)], &[]);
    let case = &tested.cases["inject"];
    let [seen, negative] = &case["expectations"].as_array().expect("some")[..] else {
        panic!("{case}");
    };
    assert_eq!(
        (&seen["holds"], &negative["holds"]),
        (&true.into(), &false.into()),
        "{case}"
    );
    let why = negative["why"].as_str().expect("why");
    assert!(why.starts_with("it returned -5, at "), "{why}");
}

#[test]
fn a_broken_expectation_may_end_the_run_at_once() {
    let below = "
        [[expect]]
        probe = 'kprobe:fn_nop'
        never = true
        stop = true
    ";
    // Without the stop, the guest would hang until the timeout.
    let tested = test(&[("stop", "cmdline = 'run=calls=1,hang'", below)], &[]);
    assert_eq!(tested.code, Some(1));
    let case = &tested.cases["stop"];
    assert_eq!(case["summary"]["guest"]["end"], "stopped", "{case}");
}

#[test]
fn bad_ends_fail_and_are_tried_again() {
    let tested = test(
        &[
            ("hangs", "cmdline = 'run=calls=1,hang'", ""),
            (
                "expected",
                "cmdline = 'run=calls=1,hang'",
                "[[expect]]\nend = 'timeout'\n",
            ),
            (
                "late",
                "cmdline = 'run=calls=1,hang'",
                "[[expect]]\nend = 'timeout'\nbefore = '1s'\n",
            ),
        ],
        &["--timeout", "1500ms", "--retries", "1"],
    );
    assert_eq!(tested.code, Some(1));
    let hangs = &tested.cases["hangs"];
    assert_eq!(hangs["reasons"][0], "the guest ended by timeout");
    assert_eq!(
        (&hangs["attempts"], &tested.cases["expected"]["attempts"]),
        (&2.into(), &1.into())
    );
    assert_eq!(tested.cases["expected"]["outcome"], "passed");
    let late = tested.cases["late"]["reasons"][0]
        .as_str()
        .expect("a reason");
    assert!(
        late.starts_with("the guest ends by timeout within 1s: it ran for 1."),
        "{late}"
    );
    assert_is_junit(&tested.junit, 3, 2, 0);
}

#[test]
fn a_probe_that_does_not_exist_is_an_error_of_its_case() {
    let below = "[[expect]]\nprobe = 'kprobe:fn_nopp'\nnever = true\n";
    let tested = test(&[("typo", GUEST, below)], &[]);
    assert_eq!(tested.code, Some(2));
    assert_eq!(tested.cases["typo"]["outcome"], "error");
    assert_is_junit(&tested.junit, 1, 0, 1);
}

#[test]
fn the_matrix_makes_cases_and_shards_share_them() {
    let matrix = ["--matrix", "cpus=1,2", "memory=64M,96M"];
    let names = |options: &[&str]| {
        let tested = test(
            &[("m", GUEST, "[[expect]]\nend = 'reset'\n")],
            &[&matrix, options].concat(),
        );
        assert_eq!(tested.code, Some(0), "{}", tested.stderr);
        tested.cases.into_keys().collect::<Vec<_>>()
    };
    let first = names(&["--shard", "1/2"]);
    assert_eq!(first, ["m [cpus=1 memory=64M]", "m [cpus=2 memory=64M]"]);
    let second = names(&["--shard", "2/2"]);
    assert_eq!(second, ["m [cpus=1 memory=96M]", "m [cpus=2 memory=96M]"]);
}

#[test]
fn a_run_is_judged_as_well() {
    let broken = "[[expect]]\nprobe = 'kprobe:fn_nop'\nexactly = 2\n";
    let folder = write(&[("holds", GUEST, HOLD), ("broken", GUEST, broken)]);
    let run = |name: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .current_dir(folder.path().join("manifests"))
            .args(["run", name, "--format", "json", "--console", "none"])
            .output()
            .expect("the command starts");
        let stdout = String::from_utf8(output.stdout).expect("utf-8");
        for line in stdout.lines() {
            let _: events::Event = serde_json::from_str(line).expect(line);
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    assert_eq!(
        run("holds.toml"),
        (Some(0), "hyprobe: all 6 expectations hold\n".to_owned())
    );
    assert_eq!(
        run("broken.toml"),
        (
            Some(1),
            "expectation failed: kprobe:fn_nop is hit 2 times: 3\n".to_owned()
        )
    );
}
