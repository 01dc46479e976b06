//! The guest's own kprobes beside hyprobe's probes, on the same instructions: both see the hits, and the guest sees no difference.

use std::collections::BTreeMap;

use events::{Event, ProbeState};
use introspect::PatchTime;
use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Stock, probe};

/// The number of read and openat calls in each round: enough for a hit at each place, see [`DEBUG_REGISTERS`].
const CALLS: u64 = 30;
/// The functions with a probe at every instruction; in the last function, only at the entry, so the guest has room for a jump.
const FUNCTIONS: [&str; 3] = ["ksys_read", "vfs_read", "do_sys_openat2"];
/// The maximum number of probed bytes of a function.
const FUNCTION_BYTES: u64 = 0x80;
const ENTRY_ONLY: &str = "do_sys_openat2";
/// Called before and after each round.
const MARK: &str = "kprobe:__x64_sys_getppid";
/// The first probe hit in each call.
const FIRST_IN_CALL: &str = "kprobe:ksys_read";
/// With an event at each instruction, a few of the events optimised; with some, optimised; unoptimised; optimised again; with none.
const ROUNDS: usize = 5;
/// The outer machine's processor is QEMU's, which sets RF in the frame of an interrupt, too. If an interrupt comes just before a site
/// whose plant a debug register replaces, the site is executed unseen. On a slow host, a timer's tick waits there at most calls. But only
/// this number of sites has a register, and the plant is back from the first hit on: the guest writes to no site during a round, since the
/// guest waits for the optimiser before.
const DEBUG_REGISTERS: usize = 4;

/// The guest's own report, which has to be the same with and without probes.
fn transcript(ran: &Ran) -> Vec<&str> {
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let lines: Vec<&str> = ran
        .console
        .lines()
        .filter_map(|line| Some(line.split_once("kprobes: ")?.1.trim_end()))
        .collect();
    assert_eq!(lines.last(), Some(&"done"), "{}", ran.report());
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

/// The hits of each probe in a call of read(2), and in the openat(2) behind the call; of a return probe, the returns.
type Hits = BTreeMap<String, u64>;

fn hits(call: &Hits, probe: &str) -> u64 {
    call.get(probe).copied().unwrap_or(0)
}

/// The calls of each round.
fn our_hits(ran: &Ran) -> Vec<Vec<Hits>> {
    let mut rounds: Vec<Vec<Hits>> = vec![Vec::new(); ROUNDS];
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
            let calls = &mut rounds[marks / 2];
            if *probe == *FIRST_IN_CALL || calls.is_empty() {
                calls.push(Hits::new());
            }
            let call = calls.last_mut().expect("one has begun");
            *call.entry(probe.to_string()).or_default() += 1;
        }
    }
    assert_eq!(marks, 2 * ROUNDS, "{}", ran.report());
    rounds
}

/// The offsets of the instructions that the kernel does not patch at run time, except the first.
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
    assert!(own.len() > 60, "{}", alone.report());

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
        assert_eq!(without, with, "{}", beside.report());
    }
    assert_eq!(expected.len(), told.len());

    let summary = beside.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    for probe in &summary.probes {
        assert_eq!(probe.state, ProbeState::Armed, "{probe:?}");
        assert!(probe.missed.is_empty(), "{probe:?}");
    }
    let rounds = our_hits(&beside);
    for calls in &rounds {
        assert_eq!(calls.len() as u64, CALLS);
        for name in FUNCTIONS {
            for kind in ["kprobe", "kretprobe"] {
                let probe = format!("{kind}:{name}");
                let hits: u64 = calls.iter().map(|call| hits(call, &probe)).sum();
                assert_eq!(hits, CALLS, "{probe}");
            }
        }
    }
    for name in FUNCTIONS {
        let returns = probe(&summary, &format!("kretprobe:{name}"));
        assert_eq!(returns.returns, Some(returns.hits), "{name}");
    }
    // Every call has the hits that the guest's own kprobes saw. No kprobe of the guest hides an instruction from hyprobe's probes, as an
    // instruction or as part of a jump.
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
    let mut late = [0; ROUNDS];
    for (ours, theirs) in &ours {
        let most = rounds.iter().flatten().map(|call| hits(call, ours)).max();
        let in_call = match own.get(theirs.as_str()) {
            Some(all) => {
                assert_eq!(all % CALLS, 0, "{theirs}: the calls differ");
                all / CALLS
            }
            None => most.unwrap_or(0),
        };
        for (number, calls) in rounds.iter().enumerate() {
            let seen: Vec<u64> = calls.iter().map(|call| hits(call, ours)).collect();
            let is_late = seen.iter().any(|hits| *hits != in_call);
            late[number] += usize::from(is_late);
            let unseen = seen.iter().take_while(|hits| **hits == 0).count();
            let mut from_first = seen.iter().skip(unseen);
            let first = from_first.next().copied().unwrap_or(0);
            assert!(
                (first > 0 || in_call == 0)
                    && first <= in_call
                    && from_first.all(|hits| *hits == in_call),
                "{ours} in round {number}: {seen:?} instead of {in_call} in each call"
            );
        }
    }
    assert!(
        late.iter().all(|places| *places <= DEBUG_REGISTERS),
        "places with an unseen hit, by round: {late:?}"
    );
    let [_, first, off, again] = optimised(&beside)[..] else {
        panic!("the optimiser was not asked\n{}", beside.report());
    };
    assert!(
        first > 0 && off == 0 && again == first,
        "{first} {off} {again}"
    );
    assert!(optimised(&alone)[1] >= first);
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
