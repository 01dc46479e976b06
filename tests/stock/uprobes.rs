//! Probes in programs of stock kernels: the hits are the calls that the programs count themselves, and neither readers of the file nor the
//! programs notice the probes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control::Client;
use control::api::{AddProbe, AddProbes};
use events::{Hit, ProbeState, ProbeSummary};
use guest_images::workload;
use manifest::GuestEnd;
use sha2::{Digest as _, Sha256};

use crate::boot::{Boot, Ran, Running, Stock};

const COUNTED: &str = "uprobe:/bin/counted:counted";
/// The last instruction of the function.
const RETURN: &str = "uprobe:/bin/counted:counted_return";
/// Both.
const MATCHING: &str = "uprobe:/bin/counted:counted*";
const IN_COPY: &str = "uprobe:/bin/counted.copy:counted";
/// A program writes to the page, and executes its private copy.
const COPIED: &str = "uprobe:/bin/counted:copied";
/// The file is on a disk, and its pages leave the memory.
const ON_DISK: &str = "uprobe:/disk/counted:counted";
/// No program maps the file.
const ABSENT: &str = "uprobe:/absent:counted";
/// No instruction begins there.
const WITHIN: &str = "uprobe:/bin/counted:counted+0x2";
/// Each is executed once a round: see `guest-images/workload/uprobes-attacks.h`.
const ATTACKED: [&str; 7] = [
    "uprobe:/bin/counted:with_bytes",
    "uprobe:/bin/counted:straddled",
    "uprobe:/bin/counted:straddles",
    "uprobe:/bin/counted:copying_string",
    "uprobe:/bin/counted:calling_kernel",
    "uprobe:/bin/counted:faulting",
    "uprobe:/bin/counted:stepped",
];
/// Functions whose calls all return: one within another, by forks, threads, new programs, copies and handlers of signals; on three pages; with the hardware.
const RETURNING: [&str; 5] = [
    "uretprobe:/bin/counted:counted*",
    "uretprobe:/bin/counted:straddling",
    "uretprobe:/bin/counted:calling",
    "uretprobe:/bin/counted:with_bytes",
    "uretprobe:/bin/counted:stepped",
];
/// Calls itself. Its returns are events.
const SUMMED: &str = "uretprobe:/bin/counted:summed";
/// Functions that are left in other ways, too: see `guest-images/workload/uprobes-returns.h`.
const LEFT: [&str; 5] = [
    "uretprobe:/bin/counted:forking",
    "uretprobe:/bin/counted:tailing",
    "uretprobe:/bin/counted:jumping",
    "uretprobe:/bin/counted:ending",
    "uretprobe:/bin/counted:vforking",
];
/// Marks: see `guest-images/workload/uprobes-marks.h`.
const ENTER: &str = "usdt:/bin/counted:counted:enter";
const MARKS: &str = "usdt:/bin/counted:count*:*";
const GUARDED: &str = "usdt:/bin/counted:counted:guarded";
/// A probe at returns is added while programs call, and removed.
const LIVE_RETURN: &str = "uretprobe:/bin/looping:counted";
/// Probes are added to `counted` of these files, and removed, while programs run.
const LIVE: [&str; 2] = ["/bin/looping", "/disk/looping"];
/// Two programs execute their own copies, since before the probe comes.
const KEPT: &str = "uprobe:/bin/kept:copied";
/// The instructions of `counted`, one a cycle. The first argument of each call is its number.
const OFFSETS: [u64; 6] = [0, 0x1, 0x4, 0xc, 0xf, 0x10];
const CYCLES: usize = 2 * OFFSETS.len();
const CALLS: u64 = 100;
const SOCKET: &str = "x.sock";
/// `/disk` is a file system whose pages the kernel reads again. Of the two programs that call without end, the second is on the disk.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
sum() { $b sha256sum "$1" | $b cut -d ' ' -f 1; }
$b mkdir -p /proc /dev /disk
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
IFS=,; for m in ${modload}; do $b insmod $m; done; unset IFS
$b dd if=/dev/zero of=/image bs=1M count=2 2>/dev/null
$b losetup /dev/loop0 /image
$b mke2fs /dev/loop0 >/dev/null
$b mount -t ext4 /dev/loop0 /disk
for f in looping kept; do $b cp /bin/counted /bin/$f; done
for f in counted looping; do $b cp /bin/counted /disk/$f; done
$b sync
/bin/counted all
/disk/counted calls
for try in 1 2 3 4 5 6 7 8; do
    $b sync
    echo 3 >/proc/sys/vm/drop_caches
    resident=$(/bin/counted resident /disk/counted)
    [ "$resident" = "resident 0" ] && break
done
echo $resident
/disk/counted calls
for f in /bin/counted /bin/counted.copy /disk/counted; do echo sha $(sum $f); done
/bin/looping loop &
first=$!
/disk/looping loop &
second=$!
for p in $first $second; do
    until $b readlink /proc/$p/exe | $b grep -q looping; do :; done
done
$b sleep 1
/bin/kept kept &
/bin/kept kept &
view() {
    for p in $first $second; do
        $b cat /proc/$p/maps
        $b sed -n '/r-xp.*looping/,/VmFlags/p' /proc/$p/smaps | $b grep -E 'Dirty|Anonymous'
    done
}
view >/before
echo loops $first $second
round=0
while :; do
    /bin/looping calls
    /disk/looping calls
    for f in /bin/looping /disk/looping; do echo sha $(sum $f); done
    view >/after
    $b cmp /before /after || echo "wrong: view"
    round=$((round + 1))
    echo round $round
done
"#;

/// The probe of the file `path` in the cycle `cycle`.
fn live(path: &str, cycle: usize) -> String {
    let offset = OFFSETS[cycle % OFFSETS.len()];
    format!("uprobe:{path}:counted+{offset:#x}")
}

/// The words behind `name` in each whole line of the console that begins with `name`.
fn lines<'c>(console: &'c str, name: &str) -> Vec<Vec<&'c str>> {
    let lines = console
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let found = lines.filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' '));
    found.map(|rest| rest.split(' ').collect()).collect()
}

/// The numbers in the line of the console that begins with `name`.
fn numbers(console: &str, name: &str) -> Vec<u64> {
    let found = lines(console, name);
    let [words] = &found[..] else {
        panic!("no single `{name}`: {console}");
    };
    let parsed = words.iter().map(|word| word.parse().expect("a number"));
    parsed.collect()
}

/// A guest whose programs count their calls.
struct Guest {
    running: Running,
    client: Client,
}

impl Guest {
    fn start(stock: &Stock, program: &Path, parameters: &'static str) -> Self {
        let mut boot = Boot::with_script(stock, SCRIPT)
            .host_file_at("/bin/counted", program)
            .modules(&["loop"])
            .parameters(parameters)
            .cpus(2)
            .option("--control", SOCKET)
            .counted(RETURN)
            .counted(MATCHING)
            .counted(ON_DISK)
            .counted(COPIED)
            .probe(COUNTED)
            .probe(IN_COPY)
            .probe(ABSENT)
            .probe(SUMMED)
            .probe(ENTER)
            .probe(MARKS)
            .counted(GUARDED)
            .probe(WITHIN);
        for spec in ATTACKED.into_iter().chain(RETURNING).chain(LEFT) {
            boot = boot.counted(spec);
        }
        let mut running = boot.start();
        // The rounds have read the files with their tables of functions.
        running.wait_for_console("round 1");
        let client = Client::new(&running.folder().join(SOCKET)).expect("a client");
        Self { running, client }
    }

    fn console(&self) -> String {
        self.running.console()
    }

    /// Adds the live probes, waits until programs have executed the instructions, and removes the probes. Returns the last counts.
    fn cycle(&mut self, cycle: usize) -> Vec<ProbeSummary> {
        /// Of all programs: one of them needs more than ten.
        const ENOUGH: u64 = 60;
        let added = LIVE.map(|path| AddProbe::new(live(path, cycle))).to_vec();
        let added = self.client.add(&AddProbes::Many(added)).expect("added");
        for id in &added.ids {
            let id = id.to_string();
            while self.client.stats(&id).expect("stats").probes[0].hits < ENOUGH {
                assert!(!self.running.has_ended(), "the guest has ended");
            }
        }
        let removed = self.client.remove_all().expect("removed").probes;
        removed.into_iter().map(|probe| probe.summary).collect()
    }

    /// Adds a probe at returns while a program calls, and removes it. Each seen call has returned, except for calls at the removal.
    fn check_live_return(&mut self) {
        /// Of all programs: one of them needs more than ten.
        const ENOUGH: u64 = 60;
        let added = AddProbes::One(AddProbe::new(LIVE_RETURN));
        let id = self.client.add(&added).expect("added").ids[0].to_string();
        let returns = |client: &Client| client.stats(&id).expect("stats").probes[0].returns;
        let begun = Instant::now();
        while returns(&self.client) < Some(ENOUGH) {
            assert!(!self.running.has_ended(), "the guest has ended");
            assert!(begun.elapsed() < Duration::from_secs(60), "no returns");
            std::thread::sleep(Duration::from_millis(20));
        }
        let removed = self.client.remove_all().expect("removed").probes;
        let removed = &removed[0].summary;
        let left = removed.hits - removed.returns.expect("a count");
        let in_flight = removed.in_flight.expect("a count");
        let missed: u64 = removed.missed.values().sum();
        assert!(left <= 2 && left == in_flight + missed, "{removed:?}");
    }

    /// Waits for two whole rounds from now on.
    fn wait_for_rounds(&mut self) {
        let now = lines(&self.console(), "round").len();
        self.running.wait_for_console(&format!("round {}", now + 2));
    }
}

fn unprotected(times: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([("unprotected".to_owned(), times)])
}

/// Asserts that the probes from before the start have hit as often as the programs have called.
fn assert_exact(image: &str, console: &str, probes: &[ProbeSummary]) {
    let sums: BTreeSet<u64> = numbers(console, "sums").into_iter().collect();
    assert_eq!(sums.len(), 1, "{image}: {sums:?}");
    let [calls, in_copy] = numbers(console, "counted")[..] else {
        panic!("{console}");
    };
    let [rounds, alarms] = numbers(console, "attacked")[..] else {
        panic!("{console}");
    };
    assert!(
        calls >= 12 * CALLS && in_copy == 3 * CALLS && rounds > 0 && alarms > 0,
        "{image}: {calls} {in_copy} {rounds} {alarms}"
    );
    let attacked = ATTACKED.map(|spec| (spec, rounds));
    let expected = [
        (COUNTED, calls),
        (RETURN, calls),
        (MATCHING, 2 * calls),
        (IN_COPY, in_copy),
        (ON_DISK, 2 * CALLS),
    ];
    for (name, hits) in expected.into_iter().chain(attacked) {
        let found = probes.iter().find(|probe| probe.probe == name);
        let found = found.expect("the probe");
        assert_eq!(found.state, ProbeState::Armed, "{image}: {found:?}");
        assert_eq!(found.hits, hits, "{image}: {found:?}");
        assert!(found.missed.is_empty(), "{image}: {found:?}");
    }
    assert_returns(
        image,
        console,
        probes,
        [2 * calls, rounds, rounds, rounds, rounds],
    );
    let copied = probes.iter().find(|probe| probe.probe == COPIED);
    let copied = copied.expect("the probe");
    assert_eq!(copied.hits, 2, "{image}: {copied:?}");
    // One copy.
    assert_eq!(copied.missed, unprotected(1), "{image}");
    for name in [ABSENT, WITHIN] {
        let found = probes.iter().find(|probe| probe.probe == name);
        let found = found.expect("the probe");
        assert_eq!(found.state, ProbeState::Pending, "{image}: {found:?}");
        assert_eq!(found.hits, 0, "{image}: {found:?}");
    }
}

/// Asserts that each call of the functions has returned, or is counted as missed. `returning` is the number of calls of the first functions.
fn assert_returns(image: &str, console: &str, probes: &[ProbeSummary], returning: [u64; 5]) {
    let left = numbers(console, "left");
    let [summed, forking, tailing, jumping, ending, vforking] = left[..] else {
        panic!("{console}");
    };
    let none = BTreeMap::new();
    let missed = |why: &str, times| BTreeMap::from([(why.to_owned(), times)]);
    let mut left_unseen = missed("left-unseen", jumping - 1);
    left_unseen.extend(missed("abandoned", 1));
    let returning = RETURNING.into_iter().zip(returning);
    let all = returning.map(|(name, calls)| (name, calls, calls, none.clone()));
    let left = [
        (SUMMED, summed, summed, none.clone()),
        // The return of the child belongs to no call.
        (LEFT[0], forking, forking, none.clone()),
        (LEFT[4], vforking, vforking, none.clone()),
        (LEFT[1], tailing, 0, missed("tail-call", tailing)),
        // The last call is abandoned when the program ends.
        (LEFT[2], jumping, 0, left_unseen),
        (LEFT[3], ending, 0, missed("abandoned", ending)),
    ];
    for (name, hits, returns, missed) in all.chain(left) {
        let found = probes.iter().find(|probe| probe.probe == name);
        let found = found.expect("the probe");
        let counted = (found.hits, found.returns, found.in_flight);
        assert_eq!(
            counted,
            (hits, Some(returns), Some(0)),
            "{image}: {found:?}"
        );
        assert_eq!(found.missed, missed, "{image}: {found:?}");
    }
}

/// Asserts that the recursive calls have returned with their sums, the innermost first.
fn assert_sums(image: &str, ran: &Ran) {
    const DEEPEST: u64 = 20;
    let returns = ran.returns();
    let summed: Vec<_> = returns.iter().filter(|it| &*it.probe == SUMMED).collect();
    assert!(!summed.is_empty(), "{image}");
    let sum = |depth: u64| (1..=DEEPEST - depth).sum::<u64>();
    let expected = (0..=DEEPEST).rev().map(|depth| (depth, sum(depth)));
    let expected: Vec<_> = expected.cycle().take(summed.len()).collect();
    let found = summed.iter().map(|it| (it.depth as u64, it.retval.0));
    assert_eq!(found.collect::<Vec<_>>(), expected, "{image}");
    for returned in summed {
        assert_eq!(&*returned.symbol, "summed+0x0 [/bin/counted]");
        assert!(returned.task.is_some(), "{returned:?}");
    }
}

/// Asserts that each pass of a mark is a hit with the values of the mark.
fn assert_marks(image: &str, ran: &Ran, probes: &[ProbeSummary]) {
    let [passes, raised, guarded, held, quiet] = numbers(&ran.console, "marked")[..] else {
        panic!("{image}: {}", ran.console);
    };
    assert!(0 < raised && raised < passes, "{image}");
    // The counters of probed marks read as raised, and memory keeps what the program has written.
    assert_eq!((guarded, held, quiet), (passes, passes, 0), "{image}");
    assert!(!ran.console.contains("wrong counter"), "{}", ran.report());
    for (name, hits) in [(ENTER, passes), (MARKS, 4 * passes), (GUARDED, passes)] {
        let found = probes.iter().find(|probe| probe.probe == name);
        let found = found.expect("the probe");
        assert_eq!(found.state, ProbeState::Armed, "{image}: {found:?}");
        assert_eq!(found.hits, hits, "{image}: {found:?}");
        assert!(found.missed.is_empty(), "{image}: {found:?}");
    }
    let hits = ran.hits();
    let values = |name: &str, symbol: &str| {
        let of_mark = hits
            .iter()
            .filter(move |hit| &*hit.probe == name && &*hit.symbol == symbol);
        let shown = of_mark.map(|hit| {
            let params = hit.params.iter().flatten().map(ToString::to_string);
            params.collect::<Vec<_>>().join(" ")
        });
        shown.collect::<Vec<_>>()
    };
    let expected = |form: &dyn Fn(u64) -> String| (0..passes).map(form).collect::<Vec<_>>();
    let enter = "counted:enter [/bin/counted]";
    let entered =
        expected(&|number| format!("arg0={number} arg1=-{number} arg2=7").replace("-0", "0"));
    assert_eq!(values(ENTER, enter), entered, "{image}");
    assert_eq!(values(MARKS, enter), entered, "{image}");
    let left = values(MARKS, "counted:leave [/bin/counted]");
    assert_eq!(left.len() as u64, passes, "{image}");
    let held = values(MARKS, "counted:held [/bin/counted]");
    assert_eq!(held, expected(&|_| "arg0=1".to_owned()), "{image}");
    // The place of the second operand is a symbol.
    assert_eq!(left[3], "arg0=3 arg1=…", "{image}");
}

/// Asserts that no program and no reader of the files has noticed a probe.
fn assert_unnoticed(image: &str, ran: &Ran, program: &Path) {
    let bytes = std::fs::read(program).expect("the program");
    let digest = Sha256::digest(bytes);
    let sum: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let sums = lines(&ran.console, "sha");
    assert!(sums.len() > 3, "{image}: {}", ran.console);
    assert!(
        sums.iter().all(|words| words == &[&*sum]),
        "{image}: {sums:?}"
    );
    assert_eq!(numbers(&ran.console, "resident"), [0], "{image}");
    assert!(!ran.console.contains("wrong"), "{image}: {}", ran.console);
    ran.assert_well();
}

/// Asserts that the hits of `name` in the endless program have the numbers of its calls, without a gap while the probe was armed.
fn assert_gapless(image: &str, name: &str, hits: &[Hit], loops: &[u64]) {
    let mut calls: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for hit in hits.iter().filter(|hit| &*hit.probe == name) {
        let task = hit.task.as_ref().expect("a task");
        let pid = u64::try_from(task.pid).expect("a number");
        calls.entry(pid).or_default().push(hit.args[0].0);
    }
    let looping: Vec<&Vec<u64>> = loops.iter().filter_map(|pid| calls.get(pid)).collect();
    let [calls] = looping[..] else {
        panic!("{image}: {name}: {loops:?} {calls:?}");
    };
    assert!(
        calls.is_sorted_by(|a, b| a < b),
        "{image}: {name}: {calls:?}"
    );
    let runs = calls.chunk_by(|before, after| before + 1 == *after);
    assert_eq!(
        runs.count(),
        CYCLES / OFFSETS.len(),
        "{image}: {name}: {calls:?}"
    );
}

fn check(image: &str, parameters: &'static str) {
    let folder = tempfile::tempdir().expect("a folder");
    let program: PathBuf = workload::build_uprobes(folder.path()).expect("it compiles");
    let stock = Stock::fetch(image);
    let mut guest = Guest::start(&stock, &program, parameters);
    let loops = numbers(&guest.console(), "loops");
    let removed = guest.client.remove_all().expect("removed").probes;
    let removed: Vec<ProbeSummary> = removed.into_iter().map(|probe| probe.summary).collect();
    assert_exact(image, &guest.console(), &removed);

    let mut counts = BTreeMap::new();
    for cycle in 0..CYCLES {
        for probe in guest.cycle(cycle) {
            assert_eq!(probe.state, ProbeState::Armed, "{image}: {probe:?}");
            assert!(probe.missed.is_empty(), "{image}: {probe:?}");
            *counts.entry(probe.probe).or_insert(0) += probe.hits;
        }
    }
    guest.check_live_return();
    guest.wait_for_rounds();
    let kept = guest.client.add(&AddProbes::One(AddProbe::new(KEPT)));
    kept.expect("added");
    guest.wait_for_rounds();
    let kept = guest.client.remove_all().expect("removed").probes;
    let kept: Vec<ProbeSummary> = kept.into_iter().map(|probe| probe.summary).collect();
    assert_eq!(kept[0].missed, unprotected(2), "{image}: {kept:?}");
    assert_eq!(kept[0].hits, 0, "{image}: {kept:?}");
    guest.client.command("stop").expect("stopped");
    let ran = guest.running.finish();
    assert_eq!(
        ran.summary().guest.end,
        GuestEnd::Stopped,
        "{}",
        ran.report()
    );
    assert_unnoticed(image, &ran, &program);
    let within = "/bin/counted is not probed: offset 0x2 is inside the instruction";
    let notes = ran.notes();
    assert!(notes.iter().any(|note| note.contains(within)), "{notes:?}");

    let hits = ran.hits();
    let of = |name: &str| hits.iter().filter(|hit| &*hit.probe == name).count() as u64;
    for probe in removed
        .iter()
        .filter(|probe| [COUNTED, IN_COPY].contains(&&*probe.probe))
    {
        assert_eq!(of(&probe.probe), probe.hits, "{image}");
    }
    assert_eq!(
        counts.len(),
        LIVE.len() * OFFSETS.len(),
        "{image}: {counts:?}"
    );
    for (name, count) in counts {
        assert_eq!(of(&name), count, "{image}: {name}");
        assert_gapless(image, &name, &hits, &loops);
    }
    assert_sums(image, &ran);
    assert_marks(image, &ran, &removed);
    let returns = ran.returns();
    let live = returns.iter().filter(|it| &*it.probe == LIVE_RETURN);
    let mut values: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for returned in live {
        let pid = returned.task.as_ref().expect("a task").pid.into();
        values.entry(pid).or_default().push(returned.retval.0);
    }
    // Each call returns its number.
    let looping = loops
        .iter()
        .find_map(|pid| values.get(&(*pid).cast_signed()));
    let looping = looping.expect("returns of the program that calls without end");
    let is_gapless = looping.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    assert!(is_gapless && looping.len() > 10, "{image}: {looping:?}");
    for hit in hits.iter().filter(|hit| &*hit.probe == COUNTED) {
        assert_eq!(&*hit.symbol, "counted+0x0 [/bin/counted]");
        assert!(hit.task.is_some(), "{hit:?}");
    }
}

#[test]
fn uprobes_of_debian_5_10_hit_as_often_as_the_programs_count() {
    check("debian-5.10", "");
}

#[test]
fn uprobes_of_debian_6_1_hit_as_often_as_the_programs_count() {
    check("debian-6.1", "pti=on");
}

#[test]
fn uprobes_of_debian_6_12_hit_as_often_as_the_programs_count() {
    check("debian-6.12", "");
}

#[test]
fn uprobes_of_debian_sid_hit_as_often_as_the_programs_count() {
    check("debian-sid", "");
}
