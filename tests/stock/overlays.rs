//! Probes in programs of overlay file systems, as containers have them: the hits are the calls of the file below, by any path.

use guest_images::workload;
use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};

/// The program calls its function as often.
const CALLS: u64 = 100;
const FIRST: &str = "uprobe:/o/merged1/counted:counted";
const SECOND: &str = "uprobe:/o/merged2/counted:counted";
const RETURNS: &str = "uretprobe:/o/merged1/counted:counted";
/// Two overlays of one file. The first gets a copy of its own, and then another file.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
IFS=,; for m in ${modload}; do $b insmod $m; done; unset IFS
$b mkdir -p /o
$b mount -t tmpfs tmpfs /o
$b mkdir /o/below
$b cp /bin/counted /o/below/counted
for o in 1 2; do
    $b mkdir /o/upper$o /o/work$o /o/merged$o
    $b mount -t overlay overlay -o lowerdir=/o/below,upperdir=/o/upper$o,workdir=/o/work$o /o/merged$o || echo "wrong: mount"
done
sum() { $b sha256sum <$1; }
call() { for f in "$@"; do $f calls || echo "wrong: $f"; done; }
call /o/merged1/counted /o/merged2/counted /o/below/counted
$b touch /o/merged1/counted
[ -e /o/upper1/counted ] || echo "wrong: no copy"
call /o/merged1/counted /o/merged2/counted
$b rm /o/merged1/counted
$b cp /bin/counted /o/merged1/counted
call /o/merged1/counted /o/upper1/counted
for f in /o/merged1/counted /o/merged2/counted /o/below/counted; do
    [ "$(sum $f)" = "$(sum /bin/counted)" ] || echo "wrong: sum of $f"
done
echo called
$b poweroff -f
"#;

fn check(image: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = workload::build_uprobes(folder.path()).expect("it compiles");
    let stock = Stock::fetch(image);
    let ran = Boot::with_script(&stock, SCRIPT)
        .host_file_at("/bin/counted", &program)
        .modules(&["overlay"])
        .cpus(2)
        .probe(FIRST)
        .counted(SECOND)
        .counted(RETURNS)
        .run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff, "{}", ran.report());
    let console = &ran.console;
    assert!(
        console.contains("called") && !console.contains("wrong"),
        "{console}"
    );
    // The second is known from its first mapping on: its calls, two times, and those of the file below.
    for (name, runs) in [(FIRST, 7), (SECOND, 3), (RETURNS, 7)] {
        let summed = probe(&summary, name);
        assert_eq!(summed.hits, runs * CALLS, "{name}: {}", ran.report());
        assert!(summed.missed.is_empty(), "{summed:?}");
    }
    let returns = probe(&summary, RETURNS).returns;
    assert_eq!(returns, Some(7 * CALLS), "{}", ran.report());
    let hits = ran.hits();
    assert_eq!(hits.len() as u64, 7 * CALLS);
    let mut places = hits.iter().map(|hit| &*hit.symbol);
    assert!(places.all(|place| place == "counted+0x0 [/o/merged1/counted]"));
}

#[test]
fn programs_in_overlays_of_debian_5_10_hit_by_any_path() {
    check("debian-5.10");
}

#[test]
fn programs_in_overlays_of_debian_6_1_hit_by_any_path() {
    check("debian-6.1");
}

#[test]
fn programs_in_overlays_of_debian_6_12_hit_by_any_path() {
    check("debian-6.12");
}

#[test]
fn programs_in_overlays_of_debian_sid_hit_by_any_path() {
    check("debian-sid");
}
