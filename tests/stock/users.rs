//! Filters and aggregates of the task's numbers and filters of its name, compared with a workload of two users that makes a known number of calls as each.

use events::{ProbeSummary, Tier};
use manifest::GuestEnd;
use manifest::program::AggregateResult;

use crate::boot::{Boot, Stock};
use crate::tracepoints::number;

/// A user without a name.
const USER: i64 = 1234;
const CALLS_OF_ROOT: i64 = 5;
const CALLS_OF_USER: i64 = 5;
/// By the name `sync`; the others are called `busybox`.
const CALLS_BY_NAME: i64 = 2;
/// The work of the system call `sync`, which only the script makes.
const PROBES: &str = "[[probe]]
at = 'kprobe:ksys_sync'
filter = 'uid == 0'
action = 'count'
[[probe]]
at = 'kprobe:ksys_sync'
filter = 'uid == 1234'
action = 'count'
[[probe]]
at = 'kprobe:ksys_sync'
filter = 'uid != 0 && uid != 1234'
action = 'count'
[[probe]]
at = 'kprobe:ksys_sync'
aggregate = 'sum(uid)'
[[probe]]
at = 'kprobe:ksys_sync'
filter = 'uid == 1234'
aggregate = 'max(pid)'
[[probe]]
at = 'kprobe:ksys_sync'
filter = 'uid == 1234'
aggregate = 'min(tid)'
[[probe]]
at = 'kretprobe:ksys_sync'
aggregate = 'sum(uid)'
[[probe]]
at = 'kprobe:ksys_sync'
filter = 'comm == \"sync\"'
action = 'count'
[[probe]]
at = 'kprobe:ksys_sync'
filter = 'comm != \"sync\" && uid != 1234'
action = 'count'
[[probe]]
at = 'kprobe:ksys_sync'
filter = 'comm == \"busybox\"'
action = 'count'
";
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /etc
$b ln -s /bin/busybox /bin/sh
$b ln -s /bin/busybox /bin/sync
echo 'user:x:1234:1234::/:/bin/sh' >/etc/passwd
echo 'user:x:1234:' >/etc/group
$b sync
/bin/sync
/bin/sync
$b sync
$b su user -c 'for i in 1 2 3 4 5; do
    /bin/busybox sync &
    echo call$i $!
    wait
done'
$b sync
$b poweroff -n -f
"#;

fn result(probe: &ProbeSummary) -> (u64, Option<i64>) {
    let result = probe.result.clone().expect("a result");
    match result {
        AggregateResult::Sum { count, value, .. } => (count, Some(value)),
        AggregateResult::Min { count, value, .. } | AggregateResult::Max { count, value, .. } => {
            (count, value)
        }
        AggregateResult::Hist { .. } | AggregateResult::Lhist { .. } => panic!("{result:?}"),
    }
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).expecting(PROBES);
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    let [
        root,
        user,
        neither,
        users,
        last,
        first,
        returned,
        named @ ..,
    ] = &summary.probes[..]
    else {
        panic!("{:#?}", summary.probes);
    };
    let hits = [root, user, neither].map(|probe| i64::try_from(probe.hits).expect("few"));
    assert_eq!(hits, [CALLS_OF_ROOT, CALLS_OF_USER, 0], "{}", ran.report());
    let calls = u64::try_from(CALLS_OF_ROOT + CALLS_OF_USER).expect("few");
    let of_users = (calls, Some(USER * CALLS_OF_USER));
    assert_eq!(result(users), of_users);
    assert_eq!(result(returned), of_users);
    let of_user = u64::try_from(CALLS_OF_USER).expect("few");
    assert_eq!(result(last), (of_user, Some(number(&ran, "call5 "))));
    assert_eq!(result(first), (of_user, Some(number(&ran, "call1 "))));
    let by_name = named
        .iter()
        .map(|probe| i64::try_from(probe.hits).expect("few"));
    let others_of_root = CALLS_OF_ROOT - CALLS_BY_NAME;
    let expected = [
        CALLS_BY_NAME,
        others_of_root,
        others_of_root + CALLS_OF_USER,
    ];
    assert_eq!(by_name.collect::<Vec<_>>(), expected, "{}", ran.report());
    // Detours evaluate the programs: at most the first hit exits.
    let unnamed = [root, user, neither, users, last, first];
    for probe in unnamed.into_iter().chain(named) {
        assert_eq!(probe.unoptimised, None, "{probe:?}");
        assert_eq!(probe.tier, Some(Tier::Optimised), "{probe:?}");
        assert!(probe.exits <= 1, "{probe:?}");
    }
}

#[test]
fn users_of_debian_5_10_have_their_own_counts() {
    check("debian-5.10");
}

#[test]
fn users_of_debian_6_1_have_their_own_counts() {
    check("debian-6.1");
}

#[test]
fn users_of_debian_6_12_have_their_own_counts() {
    check("debian-6.12");
}

#[test]
fn users_of_debian_sid_have_their_own_counts() {
    check("debian-sid");
}
