//! Named and typed arguments, tasks, strings and errors of stock kernels, compared with what the guest itself says.

use events::{GuestMembers, GuestString, Hit, Number, Param, Return, Tier};
use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Stock, probe};
use crate::syscalls::assert_all_armed;

const OPEN: &str = "kprobe:do_sys_openat2";
const OPENED: &str = "kretprobe:do_sys_openat2";
/// Called by the function of [`OPEN`], through another file of the kernel's source.
const WITHIN: &str = "kprobe:path_openat";
const READ: &str = "kprobe:vfs_read";
const MISSING: &str = "/a/missing file";
const SCRIPT: &str = "#!/bin/busybox sh
echo before
/bin/busybox sh -c 'echo pid $$; exec /bin/busybox cat \"/a/missing file\"'
for i in 1 2 3 4 5 6 7 8; do
    /bin/busybox cat /init >/dev/null
done
/bin/busybox sh -c 'echo reader $$; exec /bin/busybox dd if=/init bs=77 count=1 of=/copy'
/bin/busybox poweroff -f
";

/// How often the script executes busybox: eight times in the loop.
const EXECUTED: u64 = 13;

/// The number behind `word` on the console.
fn number_behind(ran: &Ran, word: &str) -> i32 {
    let lines = ran.console.lines();
    let mut numbers = lines.filter_map(|line| line.trim().strip_prefix(word)?.trim().parse().ok());
    numbers.next().unwrap_or_else(|| panic!("{}", ran.report()))
}

fn names(params: &[Param]) -> Vec<&str> {
    params.iter().map(|param| &*param.name).collect()
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT);
    let ran = boot
        .probe(OPEN)
        .probe(OPENED)
        .probe(WITHIN)
        .probe(READ)
        .counted("syscall:*")
        .run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    assert_all_armed(&summary);
    assert_eq!(probe(&summary, "syscall:reboot").hits, 1);
    assert_eq!(probe(&summary, "syscall:execve").hits, EXECUTED);

    // An exit reads the string.
    let (hits, returns) = (ran.hits(), ran.returns());
    let pid = number_behind(&ran, "pid ");
    let is_missing = |hit: &&Hit| {
        let mut params = hit.params.iter().flatten();
        params.any(|param| param.typed.string == Some(GuestString::Whole(MISSING.to_owned())))
    };
    let open = hits
        .iter()
        .filter(|hit| &*hit.probe == OPEN)
        .find(is_missing);
    let open = open.unwrap_or_else(|| panic!("{}", ran.report()));
    let task = open.task.as_ref().expect("a task");
    assert_eq!((task.pid, task.tid, &*task.comm), (pid, pid, "busybox"));
    let params = open.params.as_ref().expect("typed");
    assert_eq!(names(params), ["dfd", "filename", "how"]);
    let types: Vec<_> = params.iter().map(|param| &*param.typed.ty).collect();
    assert_eq!(types, ["int", "const char *", "struct open_how *"]);
    let [dfd, filename, how] = &params[..] else {
        unreachable!("three names")
    };
    assert_eq!(dfd.typed.value, Some(Number::Integer(-100)));
    assert_eq!(dfd.typed.means.as_deref(), Some("AT_FDCWD"));
    assert_eq!(filename.typed.value, Some(Number::Hex(open.args[1])));
    assert_eq!(how.typed.value, Some(Number::Hex(open.args[2])));
    let Some(GuestMembers::Whole(members)) = &how.typed.members else {
        panic!("{how:?}")
    };
    assert_eq!(names(members), ["flags", "mode", "resolve"]);
    // O_RDONLY, with the O_LARGEFILE that the kernel adds for a program of 64 bits.
    assert_eq!(
        how.to_string(),
        "how={flags=O_RDONLY|O_LARGEFILE, mode=0, resolve=0}"
    );
    let summed = probe(&summary, OPEN);
    assert_eq!(
        (summed.exits, summed.tier),
        (summed.hits, Some(Tier::Emulated))
    );
    let why = summed.unoptimised.as_deref().unwrap_or_default();
    assert!(why.contains("show a string"), "{why}");

    let failed = |ret: &&Return| ret.task.as_ref().is_some_and(|task| task.pid == pid);
    let failed: Vec<_> = returns.iter().filter(failed).collect();
    let Some(last) = failed.last() else {
        panic!("{}", ran.report())
    };
    let returned = last.returned.as_ref().expect("typed");
    assert_eq!(returned.value, Some(Number::Integer(-2)), "{last:?}");
    assert_eq!(returned.error.as_deref(), Some("ENOENT"));

    assert_eq!(
        (open.depth, last.depth),
        (0, 0),
        "the followed call itself does not count"
    );
    let within = hits
        .iter()
        .find(|hit| &*hit.probe == WITHIN && hit.ts_ns >= open.ts_ns);
    let within = within.unwrap_or_else(|| panic!("{}", ran.report()));
    // A record of the same task has neither the parent nor the cgroup.
    let by = |hit: &Hit| hit.task.as_ref().map(|task| (task.tid, task.uid));
    assert_eq!((by(within), within.depth), (by(open), 1), "{within:?}");

    // A record has numbers and the task.
    let read = probe(&summary, READ);
    assert_eq!(read.tier, Some(Tier::Optimised), "{read:?}");
    assert!(read.exits < read.hits, "{read:?}");
    let reader = number_behind(&ran, "reader ");
    let by_reader = |hit: &&Hit| {
        let is_by = hit.task.as_ref().is_some_and(|task| task.pid == reader);
        is_by && &*hit.probe == READ
    };
    let reads: Vec<_> = hits.iter().filter(by_reader).collect();
    let counts = reads.iter().map(|hit| {
        let params = hit.params.as_ref().expect("typed");
        assert_eq!(names(params), ["file", "buf", "count", "pos"]);
        assert_eq!(params[2].typed.ty.as_ref(), "size_t");
        params[2].typed.value
    });
    let counts: Vec<_> = counts.collect();
    assert!(counts.contains(&Some(Number::Integer(77))), "{counts:?}");
    for hit in &hits {
        let task = hit.task.as_ref().unwrap_or_else(|| panic!("{hit:?}"));
        assert!(!task.comm.is_empty() && task.pid > 0, "{hit:?}");
    }
}

#[test]
fn arguments_of_debian_5_10_are_named_and_typed() {
    check("debian-5.10");
}

#[test]
fn arguments_of_debian_6_1_are_named_and_typed() {
    check("debian-6.1");
}

#[test]
fn arguments_of_debian_6_12_are_named_and_typed() {
    check("debian-6.12");
}

#[test]
fn arguments_of_debian_sid_are_named_and_typed() {
    check("debian-sid");
}
