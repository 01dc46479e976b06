//! What a stock guest that looks for probes sees of them: `docs/invisibility.md`.

use std::collections::{BTreeMap, BTreeSet};

use control::Client;
use control::api::{AddProbe, AddProbes, SetKnobs};
use guest_images::workload;
use manifest::{GuestEnd, ProbeAction};

use crate::boot::{Boot, Ran, Running, Stock};

const SOCKET: &str = "x.sock";
/// The round in which the guest has a kprobe of its own, as in the script.
const OWN: u64 = 3;
/// Whole rounds before the probes come, while they are there, and after they have gone.
const ROUNDS: u64 = 2;
/// The detector looks again and again.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /t
$b mount -t proc proc /proc
$b mount -t tracefs tracefs /t
at() { $b sed -n "s/ . $1\$//p" /proc/kallsyms; }
first=$(at _stext)
last=$(at _etext)
# The text but for the page with the engine's plant that stays while plants are switched off.
kept=$(at machine_kexec)
page=$($b printf %x $((0x$kept & ~4095)))
next=$($b printf %x $((0x$page + 4096)))
table=$(at level2_kernel_pgt)
behind=$($b printf %x $((0x$table + 4096)))
file() { echo "detected $round $1 $($b sha256sum <$1)"; }
look() {
    round=$((round + 1))
    /bin/detector memory $round text $first $page ffffffffffffffff || echo "wrong: text"
    /bin/detector memory $round rest $next $last ffffffffffffffff || echo "wrong: rest"
    # Not the bits that the processor sets.
    /bin/detector memory $round table $table $behind ffffffffffffff9f || echo "wrong: table"
    for f in /proc/kallsyms /proc/modules /proc/iomem /proc/cmdline; do file $f; done
    /bin/detector program $round || echo "wrong: program"
    echo "looked $round."
}
look
look
echo 'p:own vfs_read' >/t/kprobe_events
echo 1 >/t/events/kprobes/own/enable
look
echo 0 >/t/events/kprobes/own/enable
echo >/t/kprobe_events
while :; do
    $b usleep 50000
    look
done
"#;

/// What the detector has seen in each whole round.
fn rounds(console: &str) -> BTreeMap<u64, BTreeMap<&str, &str>> {
    let mut rounds: BTreeMap<u64, BTreeMap<&str, &str>> = BTreeMap::new();
    let number = |text: &str| {
        let digits = text.trim().trim_end_matches('.');
        digits.parse().expect("a round")
    };
    let mut last = 0;
    // The console may end within a line.
    let whole = console
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    for line in whole {
        if let Some(line) = line.strip_prefix("detected ") {
            let (round, seen) = line.split_once(' ').expect("a round");
            let (what, value) = seen.split_once(' ').expect("a value");
            let seen = rounds.entry(number(round)).or_default();
            seen.insert(what, value.trim());
        }
        last = line.strip_prefix("looked ").map_or(last, number);
    }
    rounds.retain(|round, _| *round <= last);
    rounds
}

fn last_round(running: &Running) -> u64 {
    let console = running.console();
    rounds(&console).keys().next_back().copied().unwrap_or(0)
}

/// Waits for whole rounds, and returns their numbers: the first may have begun before.
fn await_rounds(running: &mut Running) -> std::ops::RangeInclusive<u64> {
    let before = last_round(running);
    let last = before + 1 + ROUNDS;
    running.wait_for_console(&format!("looked {last}."));
    before + 2..=last
}

/// Probes of all kinds: jumps, plants, debug registers, return probes, and events with stacks.
fn probes() -> Vec<AddProbe> {
    let counted = |spec: &str| AddProbe {
        action: Some(ProbeAction::Count),
        ..AddProbe::new(spec)
    };
    let traced = |spec: &str| AddProbe {
        stack: true,
        ..AddProbe::new(spec)
    };
    vec![
        counted("kprobe:vfs_*"),
        counted("kprobe:__x64_sys_*"),
        counted("kprobe:copy_from_kernel_nofault"),
        counted("kretprobe:vfs_read"),
        counted("kretprobe:schedule"),
        counted("tracepoint:sched:sched_process_fork"),
        traced("kprobe:do_exit"),
        traced("kretprobe:kernel_clone"),
    ]
}

/// What differs from the round `bare`, in any of `those`.
fn traces(ran: &Ran, bare: u64, those: impl IntoIterator<Item = u64>) -> BTreeSet<&str> {
    let seen = rounds(&ran.console);
    let wanted = &seen[&bare];
    let differing = |round: u64| {
        let of_round = &seen[&round];
        let all = wanted
            .iter()
            .filter(move |(what, value)| **what != "time" && of_round.get(*what) != Some(value));
        all.map(|(what, _)| *what).collect::<Vec<_>>()
    };
    those.into_iter().flat_map(differing).collect()
}

fn check(image: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = workload::build_detector(folder.path()).expect("it compiles");
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).host_file_at("/bin/detector", &program);
    let mut running = boot.cpus(2).option("--control", SOCKET).start();
    running.wait_for_console(&format!("looked {}.", OWN + ROUNDS));
    let client = Client::new(&running.folder().join(SOCKET)).expect("a client");
    let enable = |enabled| {
        let knobs = SetKnobs {
            enabled: Some(enabled),
            ..SetKnobs::default()
        };
        client.set_knobs(&knobs).expect("set");
    };
    enable(false);
    let bare = await_rounds(&mut running);
    enable(true);
    client.add(&AddProbes::Many(probes())).expect("added");
    let probed = await_rounds(&mut running);
    let removed = client.remove_all().expect("removed").probes;
    let behind = await_rounds(&mut running);
    client.command("stop").expect("stopped");
    let ran = running.finish();
    let end = ran.summary().guest.end;
    assert_eq!(end, GuestEnd::Stopped, "{}", ran.report());
    ran.assert_well();
    let console = &ran.console;
    assert!(
        !console.contains("wrong") && !console.contains(" failed "),
        "{console}"
    );

    // The probes were there: plants and jumps.
    let summaries: Vec<_> = removed.iter().map(|probe| &probe.summary).collect();
    let hit = summaries.iter().filter(|probe| probe.hits > 0).count();
    let jumped = summaries.iter().filter(|probe| probe.exits < probe.hits);
    let jumped = jumped.count();
    let count = summaries.len();
    println!("{count} probes; {hit} hit, {jumped} of them by jumps");
    assert!(count > 100 && hit > 20 && jumped > 10, "{summaries:?}");
    for (round, seen) in rounds(console) {
        println!("{round}: {} cycles", seen["time"]);
    }

    let bare_round = *bare.start();
    assert_eq!(traces(&ran, bare_round, bare), BTreeSet::new(), "bare");
    // The detector sees the guest's own kprobe.
    let own = own_block(&stock);
    for other in [OWN - 1, OWN + 1] {
        let seen = traces(&ran, other, [OWN]);
        assert!(seen.contains(own.as_str()), "{own}: {seen:?}");
    }
    // While no probe exists, the engine has plants of its own.
    let idle = traces(&ran, bare_round, OWN + 1..=OWN + ROUNDS);
    assert_eq!(idle, BTreeSet::new(), "idle");
    // Beside the probes, and behind: the entry of the page directory that maps the detours.
    let mapped = BTreeSet::from(["table+0x0"]);
    assert_eq!(traces(&ran, bare_round, probed), mapped);
    assert_eq!(traces(&ran, bare_round, behind), mapped);
}

/// The part of the text with the guest's own kprobe, as the script divides the text.
fn own_block(stock: &Stock) -> String {
    let address = |name| {
        let symbol = stock.kernel.symbols().lookup(name).expect(name);
        symbol.address.0
    };
    let (own, page) = (address("vfs_read"), address("machine_kexec") & !0xfff);
    let (name, start) = match own < page {
        true => ("text", address("_stext")),
        false => ("rest", page + 0x1000),
    };
    format!("{name}+{:#x}", (own - start) & !0xf_ffff)
}

#[test]
fn traces_in_debian_5_10_are_those_documented() {
    check("debian-5.10");
}

#[test]
fn traces_in_debian_6_1_are_those_documented() {
    check("debian-6.1");
}

#[test]
fn traces_in_debian_6_12_are_those_documented() {
    check("debian-6.12");
}

#[test]
fn traces_in_debian_sid_are_those_documented() {
    check("debian-sid");
}
