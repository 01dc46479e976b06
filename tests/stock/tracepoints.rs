//! Tracepoints of stock kernels, which the guest has off: fields compared with what the guest itself says.

use std::collections::BTreeSet;

use events::{GuestString, Hit, Number, ProbeState};
use manifest::GuestEnd;
use probes::Refusal;

use crate::boot::{Boot, Ran, Stock, probe};
use crate::live;

const SWITCH: &str = "tracepoint:sched:sched_switch";
const EXEC: &str = "tracepoint:sched:sched_process_exec";
const SIGNAL: &str = "tracepoint:signal:signal_generate";
const SCRIPT: &str = "#!/bin/busybox sh
/bin/busybox mount -t tracefs tracefs /sys
echo ready for probes
/bin/busybox sleep 8
echo woken
/bin/busybox sh -c 'echo executed $$; exec /bin/busybox true'
/bin/busybox sh -c 'echo killed $$; kill -31 $$'
echo enabled $(/bin/busybox cat /sys/events/sched/sched_switch/enable)
/bin/busybox poweroff -f
";

/// The number behind `word` on the console.
pub(crate) fn number(ran: &Ran, word: &str) -> i64 {
    let lines = ran.console.lines();
    let mut numbers = lines.filter_map(|line| line.trim().strip_prefix(word)?.trim().parse().ok());
    numbers.next().unwrap_or_else(|| panic!("{}", ran.report()))
}

/// The hits of the tracepoint `name`.
pub(crate) fn of<'h>(hits: &'h [Hit], name: &str) -> Vec<&'h Hit> {
    // The site is behind `@`, if there are several.
    let is_of = |hit: &&Hit| hit.probe.split('@').next() == Some(name);
    hits.iter().filter(is_of).collect()
}

fn value(hit: &Hit, name: &str) -> Option<Number> {
    let mut params = hit.params.iter().flatten();
    params.find(|param| &*param.name == name)?.typed.value
}

fn types(hit: &Hit) -> Vec<&str> {
    let params = hit.params.iter().flatten();
    params.map(|param| &*param.typed.ty).collect()
}

/// The tracepoints of `spec` with a site that can be probed, and those with a site that the kernel passes only while they are on.
fn resolved(stock: &Stock, spec: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let found = probes::resolve(&stock.kernel, &spec.parse().expect(spec), 0);
    let (mut good, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for site in found.expect(spec) {
        let name = site.name.split('@').next().unwrap_or_default().to_owned();
        match site.place {
            Ok(_) => good.insert(name),
            Err(why) if why.to_string().contains("write syscall:NAME") => refused.insert(name),
            Err(_) => false,
        };
    }
    (good, refused)
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let (good, refused) = resolved(&stock, "tracepoint:raw_syscalls:*");
    assert_eq!((good.len(), refused.len()), (0, 2), "{good:?}");
    let (good, refused) = resolved(&stock, "tracepoint:*:*");
    assert!(good.len() > 500, "{}", good.len());
    assert!(refused.len() < good.len() / 10, "{refused:#?}");
    // A module may have an unknown group, with a name that no other group has.
    let found = |spec: &str| probes::resolve(&stock.kernel, &spec.parse().expect(spec), 0);
    let waiting = found("tracepoint:nbd:nbd_send_request").expect("a module may have it");
    let waits = |site: &probes::Resolved| site.place.as_ref().is_err_and(Refusal::is_pending);
    assert!(
        waiting.len() == 1 && waiting.iter().all(waits),
        "{waiting:?}"
    );
    for mistaken in ["sched:sched_swich", "shced:sched_switch"] {
        let error = found(&format!("tracepoint:{mistaken}")).expect_err("a mistake");
        assert!(error.to_string().contains("has no tracepoint"), "{error}");
    }
    let probes = [SWITCH, EXEC, SIGNAL].map(str::to_owned);
    let ran = live::start_with_probes(&stock, SCRIPT, &probes).finish();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    ran.assert_well();
    assert_eq!(
        number(&ran, "enabled "),
        0,
        "the guest's own switch stays off"
    );
    let hits = ran.hits();

    // The program of the process, and its number before the call.
    let executed = number(&ran, "executed ");
    let is_by = |hit: &&&Hit| hit.task.as_ref().map(|task| i64::from(task.pid)) == Some(executed);
    let execs = of(&hits, EXEC);
    let exec = execs.iter().rev().find(is_by);
    let exec = exec.unwrap_or_else(|| panic!("{}", ran.report()));
    assert_eq!(
        types(exec),
        ["struct task_struct *", "pid_t", "struct linux_binprm *"]
    );
    assert_eq!(value(exec, "old_pid"), Some(Number::Integer(executed)));

    // The signal that the process has sent to itself.
    let killed = number(&ran, "killed ");
    let is_kill = |hit: &&&Hit| {
        let task = hit.task.as_ref().map(|task| i64::from(task.pid));
        task == Some(killed) && value(hit, "sig") == Some(Number::Integer(31))
    };
    let signals = of(&hits, SIGNAL);
    assert!(signals.iter().any(|hit| is_kill(&hit)), "{}", ran.report());

    // A switch from one task to another: the next switch on the processor is from the other.
    let switches = of(&hits, SWITCH);
    assert!(switches.len() > 10, "{}", switches.len());
    for pair in switches.windows(2) {
        let (next, prev) = (value(pair[0], "next"), value(pair[1], "prev"));
        assert!(next.is_some() && next == prev, "{pair:#?}");
    }
    let switch = probe(&summary, SWITCH);
    assert_eq!(switch.state, ProbeState::Armed, "{switch:?}");
    assert_eq!(switch.hits, switches.len() as u64);
}

#[test]
fn tracepoints_of_debian_5_10_have_their_fields() {
    check("debian-5.10");
}

#[test]
fn tracepoints_of_debian_6_1_have_their_fields() {
    check("debian-6.1");
}

#[test]
fn tracepoints_of_debian_6_12_have_their_fields() {
    check("debian-6.12");
}

#[test]
fn tracepoints_of_debian_sid_have_their_fields() {
    check("debian-sid");
}

/// The kernel asks whether the tracepoint is on before it passes it.
const MKDIR: &str = "tracepoint:cgroup:cgroup_mkdir";
/// The guest has both tracepoints off, then on, then off, and counts the passages itself.
const ON_AND_OFF: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /cgroup
$b mount -t tracefs tracefs /sys
$b mount -t cgroup2 cgroup2 /cgroup
switch() {
    echo $1 >/sys/events/cgroup/cgroup_mkdir/enable
    echo $1 >/sys/events/signal/signal_generate/enable
}
act() {
    echo $1
    $b mkdir /cgroup/$1-1 /cgroup/$1-2 /cgroup/$1-3
    $b sh -c 'kill -31 $$'
}
act before
switch 1
act while
switch 0
act after
echo made $($b grep -c cgroup_mkdir: /sys/trace)
echo sent $($b grep -c 'signal_generate:.* sig=31 ' /sys/trace)
$b poweroff -f
"#;

/// Hits are passages of `trace_NAME()`, also while the guest has the tracepoint on; a question whether the tracepoint is on is no hit.
fn check_on_and_off(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, ON_AND_OFF);
    let ran = boot.probe(MKDIR).probe(SIGNAL).run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let hits = ran.hits();
    let made = of(&hits, MKDIR);
    assert_eq!(number(&ran, "made "), 3, "{}", ran.report());
    assert_eq!(made.len(), 3, "{made:#?}");
    let path = |hit: &&Hit| {
        let mut params = hit.params.iter().flatten();
        params
            .find(|param| &*param.name == "path")?
            .typed
            .string
            .clone()
    };
    let paths: Vec<_> = made.iter().filter_map(path).collect();
    let expected = ["/while-1", "/while-2", "/while-3"];
    assert_eq!(
        paths,
        expected.map(|path| GuestString::Whole(path.to_owned()))
    );
    let notes = ran.notes();
    let asks =
        |note: &String| note.contains("the kernel asks whether the guest has this tracepoint on");
    assert_eq!(
        notes.iter().filter(|note| asks(note)).count(),
        1,
        "{notes:?}"
    );
    // The signal of each shell, of which the guest has traced that of the second.
    let is_kill = |hit: &&&Hit| value(hit, "sig") == Some(Number::Integer(31));
    assert_eq!(number(&ran, "sent "), 1, "{}", ran.report());
    assert_eq!(of(&hits, SIGNAL).iter().filter(is_kill).count(), 3);
}

#[test]
fn tracepoints_of_debian_5_10_count_once_while_the_guest_has_them_on() {
    check_on_and_off("debian-5.10");
}

#[test]
fn tracepoints_of_debian_6_1_count_once_while_the_guest_has_them_on() {
    check_on_and_off("debian-6.1");
}

#[test]
fn tracepoints_of_debian_6_12_count_once_while_the_guest_has_them_on() {
    check_on_and_off("debian-6.12");
}

#[test]
fn tracepoints_of_debian_sid_count_once_while_the_guest_has_them_on() {
    check_on_and_off("debian-sid");
}
