//! System calls of stock kernels by name: arguments, strings, results and counts, compared with what the guest's program does.

use events::{GuestString, Hit, Number, Param, ProbeState, ProbeSummary, Return, Summary, Tier};
use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Stock, probe};

const MISSING: &str = "/a/missing file";
/// No task has the number.
const MISSING_TASK: i64 = 4_000_000;
const SCRIPT: &str = "#!/bin/busybox sh
/bin/busybox sh -c 'echo opener $$; exec /bin/busybox cat \"/a/missing file\"'
/bin/busybox sh -c 'echo killer $$; exec /bin/busybox kill -0 4000000'
/bin/busybox dd if=/init bs=77 count=1 of=/copy
/bin/busybox sh -c 'echo changer $$; exec /bin/busybox chmod 0640 /copy'
/bin/busybox sync
/bin/busybox sync
/bin/busybox sync
/bin/busybox poweroff -f
";
/// Reads of 77 bytes are counted, and what `kill` gets and returns is expected.
const SECTIONS: &str = "
[[probe]]
at = \"syscall:read\"
filter = \"arg2 == 77\"
action = \"count\"

[[expect]]
probe = \"syscall:kill\"
seen = 4000000
in = \"arg0\"

[[expect]]
probe = \"retsyscall:kill\"
seen = -3
";

/// The number behind `word` on the console.
fn pid(ran: &Ran, word: &str) -> i32 {
    let lines = ran.console.lines();
    let mut numbers = lines.filter_map(|line| line.trim().strip_prefix(word)?.trim().parse().ok());
    numbers.next().unwrap_or_else(|| panic!("{}", ran.report()))
}

/// `name type` of each parameter.
fn declared(hit: &Hit) -> Vec<String> {
    let params = hit.params.iter().flatten();
    params
        .map(|param| format!("{} {}", param.name, param.typed.ty))
        .collect()
}

fn string(param: &Param) -> Option<&str> {
    match &param.typed.string {
        Some(GuestString::Whole(text)) => Some(text),
        _ => None,
    }
}

/// The last hit of `probe` by the process `pid`.
fn hit_of<'h>(hits: &'h [Hit], probe: &str, pid: i32) -> &'h Hit {
    let is_of =
        |hit: &&Hit| &*hit.probe == probe && hit.task.as_ref().is_some_and(|task| task.pid == pid);
    let found = hits.iter().rev().find(is_of);
    found.unwrap_or_else(|| panic!("no hit of {probe} by {pid}"))
}

fn return_of<'r>(returns: &'r [Return], probe: &str, pid: i32) -> &'r Return {
    let is_of = |ret: &&Return| {
        &*ret.probe == probe && ret.task.as_ref().is_some_and(|task| task.pid == pid)
    };
    let found = returns.iter().rev().find(is_of);
    found.unwrap_or_else(|| panic!("no return of {probe} by {pid}"))
}

fn result(ret: &Return) -> (Option<Number>, Option<&str>) {
    let returned = ret.returned.as_ref().expect("typed");
    assert_eq!(&*returned.ty, "long");
    (returned.value, returned.error.as_deref())
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).expecting(SECTIONS);
    let boot = boot.probe("syscall:openat").probe("retsyscall:openat");
    let boot = boot.probe("retsyscall:exit_group");
    let ran = boot.probe("syscall:chmod").probe("retsyscall:chmod").run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    let (hits, returns) = (ran.hits(), ran.returns());

    let opener = pid(&ran, "opener ");
    let is_missing = |hit: &&Hit| {
        let mut params = hit.params.iter().flatten();
        params.any(|param| string(param) == Some(MISSING))
    };
    let open = hits.iter().find(is_missing);
    let open = open.unwrap_or_else(|| panic!("{}", ran.report()));
    assert_eq!(&*open.probe, "syscall:openat");
    assert_eq!(open.task.as_ref().map(|task| task.pid), Some(opener));
    assert_eq!(
        declared(open),
        [
            "dfd int",
            "filename const char *",
            "flags int",
            "mode umode_t"
        ]
    );
    let params = open.params.as_ref().expect("typed");
    assert_eq!(params[0].typed.means.as_deref(), Some("AT_FDCWD"));
    assert_eq!(params[1].typed.value, Some(Number::Hex(open.args[1])));
    let flags = i64::try_from(open.args[2].0).expect("small");
    assert_eq!(params[2].typed.value, Some(Number::Integer(flags)));
    let means = params[2].typed.means.as_deref();
    assert!(
        means.is_some_and(|names| names.starts_with("O_RDONLY")),
        "{means:?}"
    );
    // The registers are the kernel's own: the first argument of the function is a pointer.
    assert_ne!(open.regs.rdi, open.args[0]);
    let opened = return_of(&returns, "retsyscall:openat", opener);
    assert_eq!(
        result(opened),
        (Some(Number::Integer(-2)), Some("ENOENT")),
        "{opened:?}"
    );

    let killer = pid(&ran, "killer ");
    let kill = hit_of(&hits, "syscall:kill", killer);
    assert_eq!(declared(kill), ["pid pid_t", "sig int"]);
    let params = kill.params.as_ref().expect("typed");
    assert_eq!(params[0].typed.value, Some(Number::Integer(MISSING_TASK)));
    assert_eq!(params[1].typed.value, Some(Number::Integer(0)));
    let killed = return_of(&returns, "retsyscall:kill", killer);
    assert_eq!(result(killed), (Some(Number::Integer(-3)), Some("ESRCH")));

    let changer = pid(&ran, "changer ");
    let change = hit_of(&hits, "syscall:chmod", changer);
    assert_eq!(declared(change), ["filename const char *", "mode umode_t"]);
    let params = change.params.as_ref().expect("typed");
    assert_eq!(string(&params[0]), Some("/copy"));
    assert_eq!(params[1].typed.value, Some(Number::Integer(0o640)));
    let changed = return_of(&returns, "retsyscall:chmod", changer);
    assert_eq!(result(changed), (Some(Number::Integer(0)), None));

    // Arguments are read from memory at an exit. A return needs none of them.
    let chmod = probe(&summary, "syscall:chmod");
    assert_eq!((chmod.hits, chmod.exits), (1, 1));
    let why = chmod.unoptimised.as_deref().unwrap_or_default();
    assert!(why.contains("arguments of the system call"), "{why}");
    assert_eq!(probe(&summary, "syscall:read").hits, 1);

    // A call that does not return is missed once its task has ended.
    let exit = probe(&summary, "retsyscall:exit_group");
    let missed: u64 = exit.missed.values().sum();
    assert_eq!((exit.returns, missed > 0), (Some(0), true), "{exit:?}");
    assert_eq!(missed + exit.in_flight.unwrap_or(0), exit.hits, "{exit:?}");
}

/// The probes of `syscall:*`.
fn calls(summary: &Summary) -> impl Iterator<Item = &ProbeSummary> {
    let probes = summary.probes.iter();
    probes.filter(|probe| probe.probe.starts_with("syscall:"))
}

/// Asserts that the probes of `syscall:*` are armed, or refused with a reason.
pub(crate) fn assert_all_armed(summary: &Summary) {
    let is_armed = |call: &&ProbeSummary| call.state == ProbeState::Armed;
    let (armed, refused): (Vec<&ProbeSummary>, Vec<_>) = calls(summary).partition(is_armed);
    assert!(armed.len() > 300, "{refused:?}");
    assert!(
        refused.iter().all(|call| call.reason.is_some()),
        "{refused:?}"
    );
}

fn check_all(image: &str) {
    let stock = Stock::fetch(image);
    let ran = Boot::with_script(&stock, SCRIPT).counted("syscall:*").run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    let summary = ran.summary();
    assert_all_armed(&summary);
    // `poweroff` calls sync, too.
    assert!(calls(&summary).all(|call| call.probe != "syscall:ni_syscall"));
    for (name, hits) in [("sync", 4), ("chmod", 1), ("reboot", 1)] {
        let name = format!("syscall:{name}");
        let call = calls(&summary).find(|call| call.probe == name);
        assert_eq!(call.map_or(0, |call| call.hits), hits, "{name}");
    }
    // A count behind a jump needs no exit, except those before the jump was there. Some functions begin with a call, and have no jump.
    let exits: u64 = calls(&summary).map(|call| call.exits).sum();
    let hits: u64 = calls(&summary).map(|call| call.hits).sum();
    let with_hits = calls(&summary).filter(|call| call.hits > 0).count() as u64;
    assert!(exits <= with_hits && with_hits < hits, "{exits} of {hits}");
    let repeated: Vec<_> = calls(&summary).filter(|call| call.hits > 1).collect();
    let is_optimised = |call: &&&ProbeSummary| call.tier == Some(Tier::Optimised);
    let optimised: Vec<_> = repeated.iter().filter(is_optimised).collect();
    assert!(2 * optimised.len() > repeated.len(), "{repeated:#?}");
    assert!(
        optimised.iter().all(|call| call.exits < call.hits),
        "{optimised:#?}"
    );
}

#[test]
fn system_calls_of_debian_5_10_have_their_arguments() {
    check("debian-5.10");
}

#[test]
fn system_calls_of_debian_6_1_have_their_arguments() {
    check("debian-6.1");
}

#[test]
fn system_calls_of_debian_6_12_have_their_arguments() {
    check("debian-6.12");
}

#[test]
fn system_calls_of_debian_sid_have_their_arguments() {
    check("debian-sid");
}

#[test]
fn all_system_calls_of_debian_5_10_are_counted_without_exits() {
    check_all("debian-5.10");
}

#[test]
fn all_system_calls_of_debian_sid_are_counted_without_exits() {
    check_all("debian-sid");
}
