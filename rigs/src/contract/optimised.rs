//! Probes that count or report their hits: a jump replaces the plant, and no hit exits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use events::Tier;
use manifest::{Action, ProbeConfig};
use probes::EngineAction;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Ran, new};
use super::text::{own_sum, sums};

pub(super) const CASES: [Case; 10] = [
    Case::new("optimised", Plants::Bytes, &[1], |here| {
        no_exits(here, "run=calls=200");
    }),
    Case::new("optimised-smp", Plants::Bytes, &[2], |here| {
        no_exits(here, "run=smp=200");
    }),
    Case::new("optimised-selfpatch", Plants::Bytes, &[1], rewritten),
    Case::new("optimised-live", Plants::Chosen, &[2], toggled),
    Case::new("recorded", Plants::Bytes, &[1], |here| {
        recorded(here, "run=calls=200");
    }),
    Case::new("recorded-smp", Plants::Bytes, &[2], |here| {
        recorded(here, "run=smp=200");
    }),
    Case::new("recorded-returns", Plants::Bytes, &[1, 2], returns),
    Case::new("programs", Plants::Bytes, &[1, 2], programs),
    Case::new("optimised-int3", Plants::Chosen, &[1, 2], led),
    Case::new("optimised-shared", Plants::Chosen, &[1, 2], shared),
];

/// Functions whose first instruction has room for a jump, and does the same in a detour.
pub(super) const ROOMY: [&str; 3] = ["fn_nop5", "fn_mov_imm", "fn_gs"];

/// Functions whose first instruction has no room for a jump.
const SHORT: [&str; 3] = ["fn_push", "fn_xor", "fn_mov"];

/// The numbers of rounds to try, until a run lasts long enough for the host's work meanwhile.
const LONGER_AND_LONGER: [u32; 3] = [200, 2000, 20_000];

/// The time for which the guest runs undisturbed between two changes.
const TURN: Duration = Duration::from_millis(2);

pub(super) fn counts(function: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: Action::Count.into(),
        ..new(&format!("kprobe:{function}"))
    }
}

fn assert_counted(ran: &Ran) {
    for function in ROOMY {
        let (hits, counted) = (ran.hits(function), ran.counted(function));
        assert!(counted > 0, "{function} is called");
        assert_eq!(hits, counted, "{function}");
    }
}

/// The first hit shows where the page tables are. Each vCPU may exit once before the jump is present.
fn no_exits(here: &Here<'_>, cmdline: &str) {
    let ran = here.guest(cmdline).with(ROOMY.map(counts)).run();
    ran.assert_good();
    assert_counted(&ran);
    for function in ROOMY {
        let probe = ran.probe(&format!("kprobe:{function}"));
        assert_eq!(probe.tier, Some(Tier::Optimised), "{probe:?}");
        assert!(probe.exits <= u64::from(here.cpus), "{probe:?}");
        assert!(probe.hits >= 200, "{probe:?}");
    }
    // If a jump has no room, the summary has the reason.
    let ran = here.guest("run=calls=5").with([counts("fn_push")]).run();
    ran.assert_good();
    let probe = ran.probe("kprobe:fn_push");
    assert_eq!((probe.hits, probe.exits), (5, 5));
    let why = probe.unoptimised.as_deref().unwrap_or_default();
    assert!(why.contains("fewer than the 5 bytes"), "{probe:?}");
}

/// Reported hits exit once to find the jump's location, and once until the ring is open.
fn recorded(here: &Here<'_>, cmdline: &str) {
    let probes = ROOMY.map(|function| format!("kprobe:{function}"));
    let ran = here.guest(cmdline).probes(&probes).run();
    ran.assert_good();
    assert_counted(&ran);
    let told = ran.observer.hits();
    for (function, name) in ROOMY.iter().zip(&probes) {
        let probe = ran.probe(name);
        assert_eq!(probe.tier, Some(Tier::Optimised), "{probe:?}");
        assert!(probe.exits <= 2 * u64::from(here.cpus), "{probe:?}");
        let hits: Vec<_> = told.iter().filter(|hit| *hit.probe == **name).collect();
        assert_eq!(hits.len() as u64, ran.counted(function), "{name}");
        for hit in &hits {
            assert!(hit.vcpu < usize::from(here.cpus), "{hit:?}");
            assert_eq!((hit.regs.rip, Some(hit.ip)), (hit.ip, probe.ip), "{hit:?}");
            assert_eq!(hit.args, hit.regs.arguments());
            // The callers put different values into all registers.
            let stack = hit.regs.rsp.0;
            assert!(stack != 0 && stack.is_multiple_of(8), "{hit:?}");
        }
        for vcpu in 0..usize::from(here.cpus) {
            let mut hits = hits.iter().filter(|hit| hit.vcpu == vcpu);
            assert!(hits.clone().count() >= 200, "{name} on {vcpu}");
            let values = |hit: &events::Hit| (hit.regs.rdi, hit.regs.r15, hit.regs.rcx);
            let first = hits.next().map(|hit| values(hit));
            assert!(hits.any(|hit| Some(values(hit)) != first), "{name}");
        }
    }
    for vcpu in 0..usize::from(here.cpus) {
        let hits = told.iter().filter(|hit| hit.vcpu == vcpu);
        assert!(
            hits.is_sorted_by_key(|hit| hit.ts_ns),
            "in the order of time"
        );
    }
}

/// The detour records the entry of a call once the return site is known to have a plant: the return is then the call's only exit.
fn returns(here: &Here<'_>) {
    let cmdline = if here.cpus == 1 {
        "run=calls=200"
    } else {
        "run=smp=200"
    };
    let probes = ROOMY.map(|function| ProbeConfig {
        action: Action::Count.into(),
        ..new(&format!("kretprobe:{function}"))
    });
    let ran = here.guest(cmdline).with(probes).run();
    ran.assert_good();
    for function in ROOMY {
        let probe = ran.probe(&format!("kretprobe:{function}"));
        let counted = ran.counted(function);
        assert_eq!(
            (probe.hits, probe.returns),
            (counted, Some(counted)),
            "{probe:?}"
        );
        assert_eq!(probe.tier, Some(Tier::Optimised), "{probe:?}");
        // To find the jump's location, until the ring is open, and to find the return site.
        let entries = probe.exits - counted;
        assert!(entries <= 8 * u64::from(here.cpus), "{probe:?}");
    }
}

/// If a jump has no room, an `int3` redirects to the detour through a handler with Linux's code: at entries, and at return sites. The
/// guest's own `int3` reaches the handler as before.
fn led(here: &Here<'_>) {
    for (kind, action) in [
        ("kprobe", Action::Count),
        ("kprobe", Action::Trace),
        ("kretprobe", Action::Count),
    ] {
        assert!(
            LONGER_AND_LONGER
                .into_iter()
                .any(|rounds| led_in_time(here, kind, action, rounds)),
            "{kind}, {action:?}: the calls always end before the int3s lead to the detours"
        );
    }
}

/// Whether the plants were replaced early enough. The first vCPU may make all its calls before the second loads an IDT. The `int3`s wait
/// for the second IDT.
fn led_in_time(here: &Here<'_>, kind: &str, action: Action, rounds: u32) -> bool {
    let cmdline = if here.cpus == 1 {
        format!("run=linuxint3,calls={rounds},int3=5")
    } else {
        format!("run=linuxint3,smp={rounds}")
    };
    let is_led = here.bench.facts().int3_reaches_guest();
    let probes = SHORT.map(|function| ProbeConfig {
        action: action.into(),
        ..new(&format!("{kind}:{function}"))
    });
    let ran = here.guest(&cmdline).with(probes).run();
    ran.assert_good();
    assert!(!is_led || ran.int3_exits == 0, "{}", ran.int3_exits);
    let mut is_in_time = true;
    for function in SHORT {
        let probe = ran.probe(&format!("{kind}:{function}"));
        let counted = ran.counted(function);
        assert!(counted >= 200, "{function} is called");
        assert_eq!(probe.hits, counted, "{probe:?}");
        let returns = probe.returns.unwrap_or(0);
        assert!(kind == "kprobe" || returns == counted, "{probe:?}");
        assert_eq!(is_led, probe.tier == Some(Tier::Optimised), "{probe:?}");
        if is_led {
            // To find the places, until the ring is open, and to find where calls return to.
            let expected = 16 * u64::from(here.cpus);
            assert!(here.cpus > 1 || probe.exits <= expected, "{probe:?}");
            is_in_time &= probe.exits <= expected.max(counted / 50);
        } else {
            let why = probe.unoptimised.as_deref().unwrap_or_default();
            assert!(why.contains("does not deliver an int3"), "{probe:?}");
            assert_eq!(probe.exits, counted + returns, "{probe:?}");
        }
    }
    is_in_time
}

/// Probes of every kind at the same function: a single detour counts, records, filters, aggregates and follows, and no hit exits. Returns
/// exit where the engine's `int3` cannot stand.
fn shared(here: &Here<'_>) {
    let cmdline = if here.cpus == 1 {
        "run=linuxint3,calls=200"
    } else {
        "run=linuxint3,smp=200"
    };
    let is_led = here.bench.facts().int3_reaches_guest();
    let at = |function: &str| {
        let kprobe = new(&format!("kprobe:{function}"));
        let returns = new(&format!("kretprobe:{function}"));
        let aggregate = "hist(cpu)".parse().expect("an aggregate");
        [
            kprobe.clone(),
            returns,
            counts(function),
            ProbeConfig {
                filter: "cpu == 0".parse().ok(),
                ..counts(function)
            },
            ProbeConfig {
                action: Action::Aggregate(aggregate).into(),
                ..kprobe.clone()
            },
            kprobe,
        ]
    };
    const KINDS: usize = 6;
    let ran = here
        .guest(cmdline)
        .with(ROOMY.iter().flat_map(|function| at(function)))
        .run();
    ran.assert_good();
    let told = ran.summary.probes.chunks_exact(KINDS);
    assert_eq!(told.len(), ROOMY.len());
    for (function, told) in ROOMY.iter().zip(told) {
        let counted = ran.counted(function);
        assert!(counted >= 200, "{function} is called {counted} times");
        for (number, probe) in told.iter().enumerate() {
            let is_filtered = number == 3;
            let share = if is_filtered { here.cpus } else { 1 };
            assert_eq!(probe.hits * u64::from(share), counted, "{probe:?}");
            assert!(
                probe.returns.is_none_or(|returns| returns == counted),
                "{probe:?}"
            );
            assert!(probe.missed.is_empty(), "{probe:?}");
            assert_eq!(probe.tier, Some(Tier::Optimised), "{probe:?}");
            let returns = probe.returns.filter(|_| !is_led).unwrap_or(0);
            // To find the jump's place, until the ring is open, to find where calls return to, and when the ring is full.
            let most = returns + 16 * u64::from(here.cpus);
            assert!(probe.exits <= most, "{probe:?}");
        }
        let name = format!("kprobe:{function}");
        let hits = ran.observer.hits();
        let hits = hits.iter().filter(|hit| *hit.probe == *name);
        assert_eq!(hits.count() as u64, 2 * counted, "{name}");
    }
}

/// Filters and aggregates give the same results in a detour as at exits. The guest calls with the same registers each time.
fn programs(here: &Here<'_>) {
    let cmdline = if here.cpus == 1 {
        "run=calls=100"
    } else {
        "run=smp=100"
    };
    for programs in [
        [
            ("sum(rdi)", ""),
            ("hist(rcx)", ""),
            ("lhist(rdx, 0, 1000, 10)", ""),
        ],
        [
            ("min(rsi)", "(rdi & 1) == 0"),
            ("max(rax)", "cpu == 0"),
            ("", "(int64)rbx < 0 && curtask != 0"),
        ],
    ] {
        let probes = || {
            ROOMY
                .iter()
                .zip(programs)
                .map(|(function, (aggregate, filter))| ProbeConfig {
                    action: match aggregate.parse() {
                        Ok(aggregate) => Action::Aggregate(aggregate).into(),
                        Err(_) => Action::Count.into(),
                    },
                    filter: filter.parse().ok(),
                    ..new(&format!("kprobe:{function}"))
                })
        };
        let told = [true, false].map(|jumps| {
            let guest = here.guest(cmdline).with(probes());
            let guest = if jumps { guest } else { guest.without_jumps() };
            let ran = guest.run();
            ran.assert_good();
            let told = ROOMY.map(|function| {
                let probe = ran.probe(&format!("kprobe:{function}"));
                let most = 2 * u64::from(here.cpus);
                assert!(!jumps || probe.exits <= most, "{probe:?}");
                assert_eq!(jumps, probe.tier == Some(Tier::Optimised), "{probe:?}");
                (probe.hits, probe.result.clone())
            });
            (told, ROOMY.map(|function| ran.counted(function)))
        });
        assert_eq!(told[0], told[1]);
        let (hits, counted) = &told[0];
        for (((hits, _), counted), (_, filter)) in hits.iter().zip(counted).zip(programs) {
            let is_right = match filter {
                "" => hits == counted,
                "cpu == 0" => hits * u64::from(here.cpus) == *counted,
                _ => (1..*counted).contains(hits),
            };
            assert!(is_right, "{filter}: {hits} of {counted}");
        }
    }
}

/// The guest rewrites the instruction under a jump, in every way of the scenario, and reads back the written bytes.
fn rewritten(here: &Here<'_>) {
    let ran = here
        .guest("run=selfpatch=5,calls=3")
        .with([counts("fn_patched")])
        .run();
    ran.assert_good();
    assert!(ran.counted("fn_patched") > 0);
    assert_eq!(ran.hits("fn_patched"), ran.counted("fn_patched"));
}

/// Jumps come and go while the guest calls: by the knob, and by a probe of each kind at the same site, which shares the detour. No call
/// is lost, and at the end the text equals the file's.
fn toggled(here: &Here<'_>) {
    let guest = here
        .guest("run=smp=250,checksum")
        .with(ROOMY.map(counts))
        .prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let ended = AtomicBool::new(false);
    let (ran, turns) = thread::scope(|scope| {
        let toggling = scope.spawn(|| {
            let mut turns = 0;
            while !ended.load(Ordering::Acquire) {
                let pause = || control.pause_all();
                engine
                    .set_optimising(&pause(), turns % 2 == 1)
                    .expect("set");
                thread::sleep(TURN);
                let function = ROOMY[turns % ROOMY.len()];
                let beside = [match turns / ROOMY.len() % 3 {
                    0 => new(&format!("kprobe:{function}")),
                    1 => counts(function),
                    _ => new(&format!("kretprobe:{function}")),
                }];
                let ids = engine.register(&pause(), &beside).expect("registered");
                thread::sleep(TURN);
                engine.unregister(&pause(), &ids).expect("removed");
                thread::sleep(TURN);
                turns += 1;
            }
            turns
        });
        let ran = guest.run();
        ended.store(true, Ordering::Release);
        (ran, toggling.join().expect("toggled"))
    });
    // Off and on again.
    assert!(turns >= 2, "the guest ends too soon: {turns} turns");
    assert!(ran.outcome.is_good(), "{}", ran.observer.console());
    assert_counted(&ran);

    assert!(
        LONGER_AND_LONGER
            .into_iter()
            .any(|rounds| disarmed(here, rounds)),
        "the guest always ends before its probes are disarmed"
    );
}

/// Disarms the probes while the guest makes calls, and compares the checksums of the guest's text. Returns whether the guest made calls
/// afterwards: on a busy host, the calls and the checksums may end first.
fn disarmed(here: &Here<'_>, rounds: u32) -> bool {
    let guest = here
        .guest(&format!("run=smp={rounds},checksum"))
        .with(ROOMY.map(counts))
        .prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let ran = thread::scope(|scope| {
        scope.spawn(|| {
            let hits = || {
                engine
                    .inventory()
                    .summaries()
                    .iter()
                    .map(|probe| probe.hits)
                    .sum::<u64>()
            };
            // The jumps are present by then, and most calls are still to come.
            while hits() < 180 {
                thread::sleep(TURN);
            }
            engine.disarm_all(&control.pause_all()).expect("disarmed");
        });
        guest.run()
    });
    ran.assert_good();
    let is_in_time = ROOMY
        .iter()
        .all(|function| ran.hits(function) < ran.counted(function));
    if is_in_time {
        assert_eq!(sums(&ran), [own_sum(here)]);
    }
    is_in_time
}
