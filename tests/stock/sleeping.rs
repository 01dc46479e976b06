//! Stacks of tasks that are on no vCPU, compared with the guest's `/proc/PID/stack`, those of idle vCPUs, and vCPUs in programs.

use std::collections::{BTreeMap, BTreeSet};

use control::api::ListedStack;
use control::{Client, StacksOf};

use crate::boot::{Boot, Stock};

const SOCKET: &str = "x.sock";
/// A program that hardly calls the kernel.
const BUSY: &str = "#!/bin/busybox sh\necho busy now\nwhile :; do :; done\n";

/// The looks for idle vCPUs: now and then, a vCPU of an idle guest works for a moment.
const LOOKS: usize = 50;

/// Whether `/proc` leaves a function out: it belongs to the scheduler.
fn is_left_out(stock: &Stock, frame: &str) -> bool {
    let symbols = stock.kernel.symbols();
    let label = |name| symbols.address_of(name).expect("a label");
    let scheduler = label("__sched_text_start")..label("__sched_text_end");
    let name = frame.split('+').next().unwrap_or(frame);
    // Another function may have the same name.
    let mut found = symbols.lookup_all(name).into_iter();
    found.any(|symbol| scheduler.contains(&symbol.address))
}

/// A task in the guest's words: counts of switches, and the stack.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen<'v> {
    switches: &'v str,
    stack: Vec<&'v str>,
}

/// The guest's tasks: `task PID VOLUNTARY INVOLUNTARY`, then a line for each function.
fn tasks(view: &str) -> BTreeMap<i32, Seen<'_>> {
    let mut tasks: Vec<(i32, Seen<'_>)> = Vec::new();
    for line in view.lines() {
        if let Some(head) = line.strip_prefix("task ") {
            let (pid, switches) = head.split_once(' ').expect("counts");
            let stack = Vec::new();
            tasks.push((pid.parse().expect("a number"), Seen { switches, stack }));
        } else {
            let (_, last) = tasks.last_mut().expect("a task");
            last.stack.push(line);
        }
    }
    tasks.into_iter().collect()
}

/// The tasks that have not run between the guest's two views, by their counts of switches.
pub(crate) fn asleep(before: &str, after: &str) -> BTreeSet<i32> {
    let (before, after) = (tasks(before), tasks(after));
    let is_asleep = |(pid, seen): &(&i32, &Seen<'_>)| {
        let later = after.get(pid);
        later.is_some_and(|later| later.switches == seen.switches)
    };
    before
        .iter()
        .filter(is_asleep)
        .map(|(pid, _)| *pid)
        .collect()
}

/// Whether the frame belongs to a read of `/proc/PID/stack`: the reading task shows the read itself.
fn is_reader(frame: &&str) -> bool {
    frame.starts_with("proc_pid_stack+")
}

/// Compares the stacks of the tasks that have not run between the guest's two views; `ours` are from the time between. Returns their number.
pub(crate) fn compare(stock: &Stock, ours: &[ListedStack], before: &str, after: &str) -> usize {
    let (before, after) = (tasks(before), tasks(after));
    let sleeping = |listed: &&ListedStack| listed.vcpu.is_none() && listed.state != Some('R');
    let mut compared = 0;
    for listed in ours.iter().filter(sleeping) {
        let task = listed.task.as_ref().expect("a task");
        let Some(theirs) = before.get(&task.tid) else {
            continue;
        };
        if after.get(&task.tid) != Some(theirs) || theirs.stack.iter().any(is_reader) {
            continue;
        }
        let frames = listed.stack.iter().map(ToString::to_string);
        let frames: Vec<String> = frames.filter(|frame| !is_left_out(stock, frame)).collect();
        assert_eq!(frames, theirs.stack, "{listed:?}");
        assert_eq!(listed.stack_incomplete, None, "{listed:?}");
        compared += usize::from(!frames.is_empty());
    }
    compared
}

/// The stacks of the vCPUs while all of them are idle.
pub(crate) fn idle(mut look: impl FnMut() -> Vec<ListedStack>) -> Vec<ListedStack> {
    let is_idle = |listed: &ListedStack| {
        let task = listed.task.as_ref();
        let mut symbols = listed
            .stack
            .iter()
            .filter_map(|frame| frame.symbol.as_ref());
        // A vCPU may work for a moment, and stand where the kernel has no rule.
        listed.stack_incomplete.is_none()
            && task.is_some_and(|task| task.tid == 0 && task.comm.starts_with("swapper/"))
            && symbols.any(|symbol| symbol.starts_with("do_idle+"))
    };
    let mut last = Vec::new();
    for _ in 0..LOOKS {
        last = look();
        if last.len() == 2 && last.iter().all(is_idle) {
            return last;
        }
    }
    panic!("no look in {LOOKS} has found idle vCPUs: {last:?}");
}

fn check_program(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, BUSY).option("--control", SOCKET);
    let mut running = boot.start();
    running.wait_for_console("busy now");
    let client = Client::new(&running.folder().join(SOCKET)).expect("a client");
    let mut looks = (0..LOOKS).map(|_| client.stacks(StacksOf::Vcpu(0)).expect("a stack").stacks);
    let found = looks.find_map(|mut stacks| stacks.pop().filter(|stack| stack.user_mode));
    drop(looks);
    let program = found.unwrap_or_else(|| panic!("{image}: no look has found the program"));
    let task = program.task.as_ref().expect("a task");
    assert_eq!((task.tid, &*task.comm), (1, "init"), "{program:?}");
    assert_eq!(
        (program.stack.len(), program.stack_incomplete.as_deref()),
        (0, None)
    );
    let of_task = client.stacks(StacksOf::Task(1)).expect("a stack").stacks;
    assert_eq!(of_task.len(), 1, "{of_task:?}");
    // Of a thread of the kernel that sleeps, the same alone and among all.
    client.command("pause").expect("paused");
    let all = client.stacks(StacksOf::All).expect("stacks").stacks;
    let is_sleeping = |listed: &&ListedStack| listed.state == Some('S') && listed.vcpu.is_none();
    let sleeping = all.iter().find(is_sleeping).expect("a task that sleeps");
    let tid = sleeping.task.as_ref().expect("a task").tid;
    let alone = client.stacks(StacksOf::Task(tid)).expect("a stack").stacks;
    assert_eq!(alone, std::slice::from_ref(sleeping));
    let missing = client.stacks(StacksOf::Task(99_999)).expect_err("no task");
    assert!(missing.to_string().contains("no task 99999"), "{missing}");
    client.command("stop").expect("stopped");
    running.finish();
}

#[test]
fn program_on_a_vcpu_of_debian_6_1_has_its_task() {
    check_program("debian-6.1");
}

#[test]
fn program_on_a_vcpu_of_debian_sid_has_its_task() {
    check_program("debian-sid");
}
