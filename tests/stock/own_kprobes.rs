//! The guest's own kprobes beside ours, on the same instructions: both see everything, and the guest cannot tell.

use std::collections::BTreeMap;

use introspect::PatchTime;
use probes::{Event, GuestEnd, ProbeState};

use crate::boot::{Boot, Ran, Stock, probe};

/// Read and openat calls that each round makes.
const CALLS: u64 = 10;
/// Every instruction of these is probed; of the last one, the entry only, which leaves room for the guest to jump.
const FUNCTIONS: [&str; 3] = ["ksys_read", "vfs_read", "do_sys_openat2"];
/// So far into a function, which is enough of the larger ones.
const FUNCTION_BYTES: u64 = 0x80;
const ENTRY_ONLY: &str = "do_sys_openat2";
/// Called before and after each round.
const MARK: &str = "kprobe:__x64_sys_getppid";
/// With an event at each instruction; with some, optimised; unoptimised; optimised again; with none.
const ROUNDS: usize = 5;
/// The outer machine's processor is QEMU's, which sets RF in the frame of an interrupt, too. An interrupt just before a
/// place that a debug register stands in for has it executed unseen: at most one in so many hits of a round, and how
/// many there are depends on how often the timer ticks in it, which is the host's speed.
const ONE_UNSEEN_IN: u64 = 50;

/// What the guest says of itself, and must say with probes as without.
fn transcript(ran: &Ran) -> Vec<&str> {
    assert_eq!(ran.code, Some(0), "{}", ran.told());
    ran.assert_well();
    let lines: Vec<&str> = ran
        .console
        .lines()
        .filter_map(|line| Some(line.split_once("kprobes: ")?.1.trim_end()))
        .collect();
    assert_eq!(lines.last(), Some(&"done"), "{}", ran.told());
    lines
}

fn optimised(ran: &Ran) -> Vec<u64> {
    let counts = ran.console.lines().filter_map(|line| {
        let count = line.split_once("optimised: ")?.1;
        count.trim().parse().ok()
    });
    counts.collect()
}

/// The guest's own hits of the first round, by event.
fn own_hits<'a>(transcript: &[&'a str]) -> BTreeMap<&'a str, u64> {
    let events = transcript.iter().filter_map(|line| {
        let mut words = line.strip_prefix("everywhere")?.split_whitespace();
        let (event, hits, missed) = (words.next()?, words.next()?, words.next()?);
        assert_eq!(missed, "0", "{line}");
        Some((event, hits.parse().ok()?))
    });
    events.collect()
}

/// How often each of our probes was hit in each round; one on a return, how often it has returned.
fn our_hits(ran: &Ran) -> Vec<BTreeMap<String, u64>> {
    let mut rounds = vec![BTreeMap::new(); ROUNDS];
    let mut marks = 0;
    for event in ran.events() {
        let probe = match event {
            Event::Hit(hit) => hit.probe,
            Event::Return(returned) => returned.probe,
            Event::Note(_) | Event::Summary(_) => continue,
        };
        if *probe == *MARK {
            marks += 1;
        } else if marks % 2 == 1 {
            *rounds[marks / 2].entry(probe.to_string()).or_default() += 1;
        }
    }
    assert_eq!(marks, 2 * ROUNDS, "{}", ran.told());
    rounds
}

/// The offsets at which an instruction begins that the kernel does not patch while it runs, but for the first.
fn boundaries(stock: &Stock, function: &str) -> Vec<u64> {
    let symbol = stock.kernel.symbols().lookup(function).expect("it exists");
    let instructions = stock.kernel.instructions(&symbol).map_while(Result::ok);
    let ours = instructions.filter(|decoded| {
        let site = stock
            .kernel
            .sites()
            .overlapping(decoded.at(), decoded.len() as u64);
        site.is_none_or(|site| site.kind.when() != PatchTime::Runtime)
    });
    ours.filter_map(|decoded| decoded.at().offset_from(symbol.address))
        .skip_while(|offset| *offset == 0)
        .take_while(|offset| *offset < FUNCTION_BYTES)
        .collect()
}

fn check(image: &str, cpus: u8) {
    let stock = Stock::fetch(image);
    let described = FUNCTIONS.map(|name| {
        let symbol = stock.kernel.symbols().lookup(name).expect("it exists");
        format!(
            "{name}:{:x}:{:x}",
            symbol.address.0,
            symbol.size.min(FUNCTION_BYTES)
        )
    });
    let parameters = format!(
        "quiet rcupdate.rcu_expedited=1 functions={} calls={CALLS}",
        described.join(",")
    );
    let boot = Boot::with_own_kprobes(&stock, &parameters).cpus(cpus);

    let alone = boot.clone().run();
    let expected = transcript(&alone);
    let own = own_hits(&expected);
    assert!(own.len() > 60, "{}", alone.told());

    let mut beside = boot.probe(MARK);
    for name in FUNCTIONS {
        beside = beside
            .probe(&format!("kprobe:{name}"))
            .probe(&format!("kretprobe:{name}"));
        if name != ENTRY_ONLY {
            for offset in boundaries(&stock, name) {
                beside = beside.probe(&format!("kprobe:{name}+{offset:#x}"));
            }
        }
    }
    let beside = beside.run();
    let told = transcript(&beside);
    for (without, with) in expected.iter().zip(&told) {
        assert_eq!(without, with, "{}", beside.told());
    }
    assert_eq!(expected.len(), told.len());

    let summary = beside.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    for probe in &summary.probes {
        assert_eq!(probe.state, ProbeState::Armed, "{probe:?}");
        assert!(probe.missed.is_empty(), "{probe:?}");
    }
    let rounds = our_hits(&beside);
    for round in &rounds {
        for name in FUNCTIONS {
            for kind in ["kprobe", "kretprobe"] {
                assert_eq!(round.get(&format!("{kind}:{name}")), Some(&CALLS), "{name}");
            }
        }
    }
    for name in FUNCTIONS {
        let returns = probe(&summary, &format!("kretprobe:{name}"));
        assert_eq!(returns.returns, Some(returns.hits), "{name}");
    }
    // Hit by hit what the guest's own kprobes saw; and none of them hides an instruction from ours, as an instruction
    // or as part of a jump.
    let ours: Vec<(String, String)> = FUNCTIONS
        .iter()
        .filter(|name| **name != ENTRY_ONLY)
        .flat_map(|name| {
            boundaries(&stock, name).into_iter().map(move |offset| {
                let theirs = format!("{name}_at{offset:03x}");
                (format!("kprobe:{name}+{offset:#x}"), theirs)
            })
        })
        .collect();
    let hits = |round: &BTreeMap<String, u64>, ours: &str| round.get(ours).copied().unwrap_or(0);
    for (number, round) in rounds.iter().enumerate() {
        let (mut unseen, mut all) = (0, 0);
        for (ours, theirs) in &ours {
            let most = rounds.iter().map(|round| hits(round, ours)).max();
            let expected = own.get(theirs.as_str()).copied().or(most).unwrap_or(0);
            let seen = hits(round, ours);
            assert!(seen <= expected, "{ours} in round {number}");
            // Interrupts are spread over all places: one that loses half of its hits is lost for another reason.
            assert!(
                expected - seen <= (expected / 2).max(1),
                "{ours} in round {number}: {seen} of {expected}"
            );
            unseen += expected - seen;
            all += expected;
        }
        assert!(
            unseen * ONE_UNSEEN_IN <= all,
            "{unseen} of {all} unseen in round {number}"
        );
    }
    let [first, off, again] = optimised(&beside)[..] else {
        panic!("the optimiser was not asked\n{}", beside.told());
    };
    assert!(
        first > 0 && off == 0 && again == first,
        "{first} {off} {again}"
    );
    assert!(optimised(&alone)[0] >= first);
}

#[test]
fn debian_5_10_has_kprobes_of_its_own() {
    check("debian-5.10", 1);
}

#[test]
fn debian_6_1_has_kprobes_of_its_own() {
    check("debian-6.1", 2);
}

#[test]
fn debian_6_12_has_kprobes_of_its_own() {
    check("debian-6.12", 1);
}

#[test]
fn debian_sid_has_kprobes_of_its_own() {
    check("debian-sid", 2);
}
