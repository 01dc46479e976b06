//! Tracepoints that modules define or pass, compared with the guest's own tracing of the same passages.

use events::{FieldValue, Hit, Number, ProbeState};
use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};
use crate::tracepoints::{number, of};

/// Defined and passed by `scsi_mod`; the guest traces it, too.
const START: &str = "tracepoint:scsi:scsi_dispatch_cmd_start";
/// The same commands; the guest has this tracepoint off.
const DONE: &str = "tracepoint:scsi:scsi_dispatch_cmd_done";
/// Defined by the kernel, and passed by `bridge` alone.
const DELETE: &str = "tracepoint:bridge:fdb_delete";
/// Of a module that is never loaded.
const WAITING: &str = "tracepoint:nbd:nbd_send_request";
/// Modules come and go: twice the bridge, and in each of `ROUNDS` those of a disk in memory, which is read. The kernel forgets its trace when a module
/// with tracepoints goes, so the guest counts before.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc
$b mount -t proc proc /proc
$b mount -t tracefs tracefs /sys
$b mount -t devtmpfs devtmpfs /dev
echo 0 >/proc/sys/kernel/printk
count() { $b grep -c "$1:" /sys/trace; }
load() { IFS=,; for m in ${modload}; do case $m in $1) $b insmod $m $2 ;; esac; done; unset IFS; }
load '*llc*'
load '*stp*'
echo 1 >/sys/events/bridge/fdb_delete/enable
for round in first second; do
    load '*bridge*'
    $b ip link add name br0 type bridge
    $b ip link set br0 address 02:00:00:00:00:01
    $b ip link set br0 address 02:00:00:00:00:02
    $b ip link del br0
    $b rmmod bridge
done
echo 0 >/sys/events/bridge/fdb_delete/enable
echo deleted $(count fdb_delete)
for round in ROUNDS; do
    for module in crc64 crc_t10dif crc-t10dif t10-pi t10_pi scsi_common scsi_mod sd_mod; do load "*$module*"; done
    echo 1 >/sys/events/scsi/scsi_dispatch_cmd_start/enable
    load '*scsi_debug*' dev_size_mb=8
    $b sleep 2
    $b dd if=/dev/sda of=/dev/null bs=65536 count=16
    $b rmmod scsi_debug
    echo 0 >/sys/events/scsi/scsi_dispatch_cmd_start/enable
    echo $round $(count scsi_dispatch_cmd_start)
    for m in sd_mod scsi_mod; do $b rmmod $m; done
done
echo left $($b grep -c '^scsi_mod ' /proc/modules)
$b poweroff -f
"#;

const TWICE: [&str; 2] = ["first", "second"];
/// The kernel of sid does not end a workqueue of the disk, without a probe either: no disk comes a second time.
const ONCE: [&str; 1] = ["first"];

/// The field `name` of a tracepoint's record.
fn field<'h>(hit: &'h Hit, name: &str) -> &'h FieldValue {
    let fields = hit.fields.as_ref();
    let field = fields.and_then(|fields| fields.get(name));
    field.unwrap_or_else(|| panic!("{name}: {hit:#?}"))
}

fn check(image: &str, rounds: &[&str], has_types: bool) {
    let stock = Stock::fetch(image);
    let script = SCRIPT.replace("ROUNDS", &rounds.join(" "));
    let boot = Boot::with_script(&stock, &script).modules(&["scsi_debug", "sd_mod", "bridge"]);
    let boot = [START, DONE, DELETE, WAITING]
        .iter()
        .fold(boot, |boot, spec| boot.probe(spec));
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    ran.assert_well();
    let hits = ran.hits();

    // Each command that the guest has traced.
    let traced = rounds.iter();
    let traced: Vec<_> = traced
        .map(|round| number(&ran, &format!("{round} ")))
        .collect();
    assert!(
        traced.iter().all(|count| *count > 10),
        "{traced:?} {}",
        ran.report()
    );
    assert_eq!(number(&ran, "left "), 0, "{}", ran.report());
    let [start, done] = [START, DONE].map(|name| probe(&summary, name));
    assert_eq!(start.hits, traced.iter().sum::<i64>().cast_unsigned());
    assert_eq!(done.hits, start.hits, "{}", ran.report());
    for probe in [start, done] {
        assert_eq!(probe.state, ProbeState::Gone, "{probe:?}");
    }

    // The command of a start, whether the guest has the tracepoint on or not.
    let commands = |name| -> Vec<_> { of(&hits, name).iter().map(|hit| hit.args[0]).collect() };
    assert_eq!(commands(START).len() as u64, start.hits);
    assert!(commands(START).iter().all(|command| command.0 != 0));
    for command in commands(DONE) {
        assert!(commands(START).contains(&command), "{command}");
    }
    if has_types {
        let first = of(&hits, START)[0];
        let params = first.params.as_ref().expect("typed");
        assert_eq!(&*params[0].typed.ty, "struct scsi_cmnd *");
        assert_eq!(params[0].typed.value, Some(Number::Hex(first.args[0])));
        assert!(first.symbol.ends_with(" [scsi_mod]"), "{}", first.symbol);
    }

    // The bytes of the command are behind the fields of the module's event.
    for hit in of(&hits, START) {
        let len = match field(hit, "cmd_len") {
            FieldValue::Number(Number::Integer(len)) => *len,
            other => panic!("{other:?}"),
        };
        let bytes = match field(hit, "cmnd") {
            FieldValue::List(bytes) => bytes.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(usize::try_from(len), Ok(bytes), "{hit:#?}");
    }

    // A tracepoint of the kernel in a module.
    let deleted = of(&hits, DELETE);
    assert!(!deleted.is_empty(), "{}", ran.report());
    assert_eq!(
        deleted.len(),
        usize::try_from(number(&ran, "deleted ")).expect("a count")
    );
    // The address of the bridge in front of the second change.
    let address = [2, 0, 0, 0, 0, 1].map(Number::Integer).to_vec();
    let address = FieldValue::List(address);
    assert!(deleted.iter().any(|hit| *field(hit, "addr") == address));
    let bridge = FieldValue::Text("br0".to_owned());
    assert!(deleted.iter().all(|hit| *field(hit, "br_dev") == bridge));
    let site = &*deleted[0].probe;
    assert!(site.contains("@bridge:"), "{site}");
    let deletes = probe(&summary, site);
    assert_eq!(deletes.state, ProbeState::Gone, "{deletes:?}");

    let waiting = probe(&summary, WAITING);
    assert_eq!(waiting.state, ProbeState::Pending, "{waiting:?}");
    let why = waiting.reason.as_deref().unwrap_or_default();
    assert!(why.contains("no loaded module passes"), "{why}");
}

/// The kernel keeps the types of modules from 5.11 on.
#[test]
fn tracepoints_in_modules_of_debian_5_10_are_those_that_the_guest_traces() {
    check("debian-5.10", &TWICE, false);
}

#[test]
fn tracepoints_in_modules_of_debian_6_1_are_those_that_the_guest_traces() {
    check("debian-6.1", &TWICE, true);
}

#[test]
fn tracepoints_in_modules_of_debian_6_12_are_those_that_the_guest_traces() {
    check("debian-6.12", &TWICE, true);
}

#[test]
fn tracepoints_in_modules_of_debian_sid_are_those_that_the_guest_traces() {
    check("debian-sid", &ONCE, true);
}
