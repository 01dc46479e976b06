//! Stacks of programs, compared with the addresses to which the programs themselves say they return.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use control::api::ListedStack;
use control::{Client, StacksOf};
use events::ProgramFrame;

use crate::boot::{Boot, Running, Stock};

const SOCKET: &str = "x.sock";
const MADE: &str = "calls are made";
/// A program of the distribution, linked with the C library.
const SLEEP: &str = "/bin/sleep";
const SCRIPT: &str = "#!/bin/busybox sh\n/bin/sleep 100000 &\n/bin/busybox sleep 5\necho asleep now\nwhile :; do :; done\n";
/// The programs that sleep call these: the function, and from there the kernel.
const ASLEEP: [&str; 2] = ["uprobe:/init:asleep", "syscall:pause"];
const STACKS: &str = "[[probe]]\nat = \"uprobe:/init:asleep\"\nstack = true\n[[probe]]\nat = \"syscall:pause\"\nstack = true\n";
/// The parameter of a kernel that gives programs page tables without the kernel, and its log's line about them.
const ISOLATED: &str = "pti=on";
const IS_ISOLATED: &str = "page tables isolation: enabled";
/// The looks for a vCPU in a program: it may be in the kernel for a moment.
const LOOKS: usize = 50;

/// The addresses in the programs' own words, by the number of the process: `calls PID ADDRESS…`. The init prints its calls last.
fn calls(running: &mut Running) -> BTreeMap<i32, Vec<u64>> {
    running.wait_for_console(MADE);
    let path = running.folder().join("console");
    loop {
        let calls = calls_in(&std::fs::read_to_string(&path).expect("a console"));
        if calls.contains_key(&1) {
            return calls;
        }
        assert!(!running.has_ended(), "the guest has ended");
    }
}

/// The addresses in the whole lines of the console.
fn calls_in(console: &str) -> BTreeMap<i32, Vec<u64>> {
    let lines = console
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let lines = lines.filter_map(|line| line.trim().strip_prefix("calls ")?.split_once(' '));
    let lines = lines.filter_map(|(pid, addresses)| {
        let addresses = addresses.split(' ').map(|address| {
            let digits = address.strip_prefix("0x").expect("an address");
            u64::from_str_radix(digits, 16).expect("an address")
        });
        Some((pid.parse().ok()?, addresses.collect()))
    });
    lines.collect()
}

fn program(listed: &ListedStack) -> &[ProgramFrame] {
    assert_eq!(listed.program_stack_incomplete, None, "{listed:#?}");
    listed.program_stack.as_deref().expect("a program")
}

/// The addresses that the program returns to.
fn returns(frames: &[ProgramFrame]) -> Vec<u64> {
    let callers = frames.iter().skip(1);
    callers.map(|frame| frame.address.0).collect()
}

/// The names of the functions, without offsets.
fn names(frames: &[ProgramFrame]) -> Vec<&str> {
    let names = frames.iter().map(|frame| frame.symbol.as_deref());
    names
        .map(|symbol| symbol.and_then(|symbol| symbol.split(['+', '.']).next()))
        .map(|name| name.unwrap_or("?"))
        .collect()
}

fn client(running: &Running) -> Client {
    Client::new(&running.folder().join(SOCKET)).expect("a client")
}

fn stack_of(client: &Client, tid: i32) -> ListedStack {
    let mut stacks = client.stacks(StacksOf::Task(tid)).expect("a stack").stacks;
    stacks.pop().expect("a stack")
}

fn check(image: &str, parameters: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_calls(&stock, parameters).option("--control", SOCKET);
    let boot = boot.expecting(STACKS);
    let mut running = boot.start();
    let calls = calls(&mut running);
    assert_eq!(calls.len(), 4, "{calls:?}");
    let client = client(&running);
    let deep = [
        "with_array",
        "deeper",
        "deeper",
        "deeper",
        "start",
        "init_main",
        "_start",
    ];
    let mut seen = Vec::new();
    for (pid, expected) in &calls {
        let mut looks = (0..LOOKS).map(|_| stack_of(&client, *pid));
        // The program that never calls the kernel is interrupted by it. Amid a switch of tasks, a kernel stack has no end.
        let listed = looks.find(|listed| {
            (listed.user_mode || listed.vcpu.is_none()) && listed.stack_incomplete.is_none()
        });
        drop(looks);
        let listed = listed.unwrap_or_else(|| panic!("{image}: {pid} is never in the program"));
        let frames = program(&listed);
        assert_eq!(&returns(frames), expected, "{image}: {listed:#?}");
        assert!(
            frames
                .iter()
                .all(|frame| frame.file.as_deref() == Some("/init"))
        );
        let names = names(frames);
        seen.push(match names.as_slice() {
            ["asleep", "interrupted", "restorer", rest @ ..] if rest == deep => "in a handler",
            ["awake", rest @ ..] if rest == deep => "awake",
            ["asleep", "init_main", "_start"] => "asleep",
            [
                "asleep",
                "framed_below",
                "framed",
                "start",
                "init_main",
                "_start",
            ] => {
                // The frame pointer of a function without rules has led to its caller, and on.
                let by_pointer = frames.iter().map(|frame| frame.by_frame_pointer);
                let expected = [false, false, true, true, true, true];
                assert!(by_pointer.eq(expected), "{image}: {listed:#?}");
                "below frames"
            }
            _ => panic!("{image}: {names:?}"),
        });
    }
    seen.sort_unstable();
    assert_eq!(seen, ["asleep", "awake", "below frames", "in a handler"]);
    let records = client.log().expect("a log").records;
    let is_isolated = records
        .iter()
        .any(|record| record.text.contains(IS_ISOLATED));
    assert_eq!(is_isolated, parameters == ISOLATED, "{image}");
    // A thread of the kernel has no program.
    assert_eq!(stack_of(&client, 2).program_stack, None);
    client.command("stop").expect("stopped");
    let hits = running.finish().hits();
    for name in ASLEEP {
        let asleep = hits.iter().filter(|hit| &*hit.probe == name).map(|hit| {
            let pid = hit.task.as_ref().expect("a task").pid;
            let frames = hit.program_stack.as_deref().expect("a program");
            assert_eq!(&returns(frames), &calls[&pid], "{image}: {hit:#?}");
            assert_eq!(hit.program_stack_incomplete, None, "{image}");
            pid
        });
        let asleep: Vec<i32> = asleep.collect();
        assert_eq!((asleep.len(), asleep.last()), (3, Some(&1)), "{image}");
    }
}

/// The stack of the program that never calls the kernel, while a vCPU of the paused guest is in the program.
fn pause_in_program(client: &Client) -> ListedStack {
    for _ in 0..LOOKS {
        client.command("pause").expect("paused");
        let stacks = client.stacks(StacksOf::Vcpus).expect("stacks").stacks;
        if let Some(listed) = stacks.into_iter().find(|listed| listed.user_mode) {
            return listed;
        }
        client.command("resume").expect("resumed");
    }
    panic!("no vCPU is in a program");
}

#[test]
fn dump_of_a_vcpu_in_a_program_has_the_stack_of_the_program() {
    let stock = Stock::fetch("debian-6.1");
    let mut running = Boot::with_calls(&stock, "")
        .option("--control", SOCKET)
        .start();
    let calls = calls(&mut running);
    let client = client(&running);
    let live = pause_in_program(&client);
    let core = running.folder().join("core");
    let hyprobe = |args: &[&str], source: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyprobe"));
        let output = command.args(args).arg(source).output().expect("started");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    };
    let socket = running.folder().join(SOCKET);
    let file = core.to_str().expect("UTF-8");
    hyprobe(&["dump", file, "--pause-limit", "5m", "--socket"], &socket);
    let dumped = hyprobe(&["bt", "--json", "--dump"], &core);
    let dumped = dumped.lines().map(|line| {
        serde_json::from_str::<ListedStack>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    });
    let dumped = dumped.filter(|listed| listed.vcpu == live.vcpu);
    assert_eq!(dumped.collect::<Vec<_>>(), std::slice::from_ref(&live));
    let pid = live.task.as_ref().expect("a task").pid;
    assert_eq!(returns(program(&live)), calls[&pid], "{live:#?}");
    client.command("resume").expect("resumed");
    client.command("stop").expect("stopped");
    running.finish();
}

/// The files that the loader maps for `program` on this machine.
pub(crate) fn libraries(program: &str) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().expect("ldd");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    let words = listed.split_whitespace();
    let paths = words.filter(|word| word.starts_with('/') && Path::new(word).exists());
    paths.map(PathBuf::from).collect()
}

fn check_library(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).option("--control", SOCKET);
    let files = libraries(SLEEP).into_iter().chain([PathBuf::from(SLEEP)]);
    let mut running = files.fold(boot, |boot, file| boot.host_file(&file)).start();
    running.wait_for_console("asleep now");
    let client = client(&running);
    let tasks = client.tasks(false).expect("tasks").tasks;
    let sleeping = tasks
        .iter()
        .find(|task| task.cmdline.first().is_some_and(|word| word == SLEEP));
    let listed = stack_of(&client, sleeping.expect("the program runs").tid);
    let frames = program(&listed);
    let in_library = |frame: &ProgramFrame| {
        frame
            .file
            .as_deref()
            .is_some_and(|file| file.contains("libc"))
    };
    let names = names(frames);
    assert!(
        in_library(&frames[0]) && names[0].contains("nanosleep"),
        "{listed:#?}"
    );
    assert!(names.contains(&"__libc_start_main"), "{listed:#?}");
    let first = frames.last().expect("frames");
    assert_eq!(first.file.as_deref(), Some(SLEEP), "{listed:#?}");
    client.command("stop").expect("stopped");
    running.finish();
}

#[test]
fn program_stacks_of_debian_5_10_are_those_of_the_calls() {
    check("debian-5.10", "");
}

#[test]
fn program_stacks_of_debian_6_1_are_those_of_the_calls() {
    check("debian-6.1", ISOLATED);
}

#[test]
fn program_stacks_of_debian_6_12_are_those_of_the_calls() {
    check("debian-6.12", "");
}

#[test]
fn program_stacks_of_debian_sid_are_those_of_the_calls() {
    check("debian-sid", "");
}

#[test]
fn program_stacks_go_through_the_c_library_in_debian_6_1() {
    check_library("debian-6.1");
}
