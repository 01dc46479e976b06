//! The marks of this machine's Python, which the interpreter passes only while a tracer has raised their counters, in a stock guest.

use std::path::PathBuf;
use std::process::Command;

use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};
use crate::program_stacks::libraries;

const PYTHON: &str = "/usr/bin/python3";
/// Prints the files of the modules loaded at the interpreter's start.
const LIST: &str = "import gc, os, sys
files = {m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)}
print(*files, sep='\\n')";
const SCRIPT: &str = r#"#!/bin/busybox sh
PYTHON -I -S -B /counted.py
/bin/busybox poweroff -f
"#;
/// Python 3.11 passes `function__entry` in calls that are traced or profiled, and where a generator is closed. Collections of garbage are counted from the
/// start of the interpreter, which ends without further ones.
const COUNTED: &str = r#"import gc, os, sys
calls = 0
def profile(frame, event, argument):
    global calls
    calls += event == "call"
def counted(depth): # the sixth line
    return depth and counted(depth - 1)
sys.setprofile(profile)
for _ in range(5):
    counted(10)
sys.setprofile(None)
for _ in range(3):
    gc.collect()
print("calls", calls, "collections", sum(g["collections"] for g in gc.get_stats()), flush=True)
os._exit(0)
"#;

/// The lines that Python prints here for `code`.
fn printed(code: &str) -> Vec<String> {
    let output = Command::new(PYTHON).args(["-I", "-S", "-c", code]).output();
    let output = output.expect("Python, which `scripts/setup.sh` installs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

fn has_mark(file: &[u8]) -> bool {
    const NAME: &[u8] = b"function__entry\0";
    file.windows(NAME.len()).any(|bytes| bytes == NAME)
}

#[test]
fn marks_of_python_are_passed_while_they_are_probed_in_debian_6_1() {
    let python = std::fs::canonicalize(PYTHON).expect("Python");
    let python = python.to_str().expect("UTF-8").to_owned();
    let bytes = std::fs::read(&python).expect("the interpreter");
    if !python.ends_with("3.11") || !has_mark(&bytes) {
        println!("{python} is not Python 3.11 of Debian: no other has these marks");
        return;
    }
    let folder = tempfile::tempdir().expect("tempdir");
    let counted = folder.path().join("counted.py");
    std::fs::write(&counted, COUNTED).expect("write");

    let stock = Stock::fetch("debian-6.1");
    let script = SCRIPT.replace("PYTHON", &python);
    let marks = |names: &str| format!("usdt:{python}:python:{names}");
    let [entered, collected] = ["function__entry", "gc__*"].map(marks);
    // The third operand is the line.
    let probes = format!(
        "[[probe]]\nat = \"{entered}\"\naction = \"count\"\nfilter = \"arg2 == 6\"\n\
         [[probe]]\nat = \"{collected}\"\naction = \"count\"\n"
    );
    let mut boot = Boot::with_script(&stock, &script)
        .host_file_at("/counted.py", &counted)
        .expecting(&probes);
    let own = [PathBuf::from(&python)].into_iter();
    let read = printed(LIST).into_iter().map(PathBuf::from);
    for file in own.chain(libraries(&python)).chain(read) {
        boot = boot.host_file(&file);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff, "{}", ran.report());

    let line = ran.console.lines().find_map(|line| {
        let (calls, collections) = line.split_once("calls ")?.1.split_once(" collections ")?;
        let number = |text: &str| text.trim().parse::<u64>().expect("a number");
        Some((number(calls), number(collections)))
    });
    let (calls, collections) = line.unwrap_or_else(|| panic!("{}", ran.report()));
    assert!(calls >= 55 && collections >= 3, "{}", ran.report());
    // Each collection passes two marks: `gc__start` and `gc__done`.
    for (name, passes) in [(&entered, calls), (&collected, 2 * collections)] {
        let summed = probe(&summary, name);
        assert_eq!(summed.hits, passes, "{}", ran.report());
        assert!(summed.missed.is_empty(), "{}", ran.report());
    }
}
