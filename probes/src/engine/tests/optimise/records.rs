//! Detours that record: a record reports the same hit as an exit.

use std::sync::atomic::Ordering;

use detour::testing::{RING_FIRST, RING_HEAD, RING_LIMIT, RING_TAIL};
use events::{Hit, ProbeSummary};
use manifest::WhenFull;
use proptest::prelude::*;

use super::sharing::{CountingHandler, filtered, followed};
use super::*;

/// The ring's guest-physical address.
const RING: u64 = text::testing::DETOUR_GPA + (64 << 20);

/// A rig whose probe reports its hits, with the ring open.
fn recording() -> (Rig, Gva) {
    let (kernel, at) = roomy_on_3();
    let rig = Rig::recording(&kernel, &["probed"]);
    // At the plant, and in the detour, where the ring is not open yet.
    assert_eq!((rig.call(at, 5), rig.call(at, 6)), (6, 7));
    assert_eq!(rig.counted(0), (2, 2, Some(Tier::Optimised)));
    (rig, at)
}

/// IA32_TIME_STAMP_COUNTER.
const MSR_TSC: u32 = 0x10;

/// Clears the report time, so that hits reported at different times compare equal.
fn timeless(hit: &Hit) -> Hit {
    let ts_ns = 0;
    Hit {
        ts_ns,
        ..hit.clone()
    }
}

#[test]
fn record_emits_the_same_hit_as_an_exit() {
    let (rig, at) = recording();
    for n in 0..20 {
        assert_eq!(rig.call(at, n), n + 1);
    }
    assert_eq!(rig.hits().len(), 2, "nobody has looked");
    assert_eq!(rig.counted(0), (22, 2, Some(Tier::Optimised)));
    let hits = rig.hits();
    assert_eq!(hits.len(), 22);
    for (n, hit) in (0..).zip(&hits[2..]) {
        let first = &hits[0];
        assert_eq!(
            (hit.ip, &hit.symbol, &hit.probe),
            (first.ip, &first.symbol, &first.probe)
        );
        assert_eq!((hit.vcpu, hit.args[0].0), (3, n));
    }
    assert!(hits.is_sorted_by_key(|hit| hit.ts_ns));
    assert!(rig.notes().is_empty());
}

#[test]
fn record_of_a_counter_that_lags_is_not_before_the_last_exit() {
    let (kernel, at) = roomy_on_3();
    let rig = Rig::recording(&kernel, &["probed"]);
    rig.engine
        .reporter
        .started
        .get_or_init(std::time::Instant::now);
    rig.call(at, 0);
    // The rig's counter stands still: by the counter, the last call is as old as the opening of the ring.
    let mut opens = rig.calling(at, 1, STACK - 0x100);
    opens.msrs.insert(MSR_TSC, TSC);
    assert_eq!(rig.run(&mut opens, 100), Stepped::Returned);
    rig.call(at, 2);
    rig.engine.take_out_records();
    let times: Vec<_> = rig.hits().iter().map(|hit| hit.ts_ns).collect();
    assert!(times.len() == 3 && times.is_sorted(), "{times:?}");
}

/// Records are reported before the module's addresses and names become unknown.
#[test]
fn records_of_a_module_are_emitted_before_the_module_goes() {
    use introspect::ModuleEvent::{InitFreed, Unloading};

    for (told, event) in [InitFreed, Unloading].into_iter().enumerate() {
        let (rig, at) = recording();
        rig.call(at, 7);
        assert_eq!(rig.hits().len(), 2, "nobody has looked");
        let mut vcpu = vcpu(at);
        rig.engine
            .module_watch
            .on_module_event(&mut vcpu, &rig.paused, event)
            .expect("handled");
        assert_eq!(rig.hits().len(), 3, "{told}");
    }
}

#[test]
fn records_are_emitted_before_the_hit_of_an_exit() {
    let (kernel, at) = roomy_on_3();
    let rig = Rig::recording(&kernel, &["probed"]);
    for n in 0..4 {
        rig.call(at, n);
    }
    // With another probe beside the first, the hit exits.
    let beside = [new("probed+0x5")];
    rig.engine.register(&rig.paused, &beside).expect("done");
    rig.engine.set_optimising(&rig.paused, false).expect("set");
    rig.call(at, 4);
    let told: Vec<_> = rig.hits().iter().map(|hit| hit.args[0].0).collect();
    assert_eq!(told, [0, 1, 2, 3, 4, 4]);
}

/// While the ring is full, each hit exits and is reported at once; no hit is lost.
#[test]
fn a_full_ring_costs_an_exit_and_loses_nothing() {
    let (rig, at) = recording();
    for n in 0..RING_LIMIT + 10 {
        let regs = rig.calling(at, n, STACK).regs;
        let mut vcpu = vcpu(at);
        vcpu.regs = regs;
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    }
    let (hits, exits, _) = rig.counted(0);
    assert_eq!(hits, 2 + RING_LIMIT + 10);
    assert_eq!(exits, 3, "one when there was no room, and then there was");
    let told: Vec<_> = rig.hits().iter().map(|hit| hit.args[0].0).collect();
    let expected: Vec<_> = [5, 6].into_iter().chain(0..RING_LIMIT + 10).collect();
    assert_eq!(told, expected);
}

/// With `WhenFull::Drop`, a full ring drops hits and reports their number.
#[test]
fn a_full_ring_drops_and_counts_where_that_is_wanted() {
    for spec in ["kprobe:probed", "kretprobe:probed"] {
        let (kernel, at) = roomy_on_3();
        let rig = Rig::with(&kernel, &[], ABILITIES);
        rig.engine.set_when_full(WhenFull::Drop);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let new: ProbeSpec = spec.parse().expect("a probe");
        let ids = rig.engine.register(&rig.paused, &[new.into()]);
        let ids = ids.expect("registered");
        for n in 0..20 {
            assert_eq!(rig.call(at, n), n + 1);
        }
        let before = rig.probe(0);
        assert_eq!(before.hits, 20, "there is room: {before:?}");
        assert_eq!(before.missed.get("ring-full"), None);
        if spec.starts_with("kretprobe") {
            // No plant is possible at the call's return address: each call exits.
            continue;
        }
        assert_eq!(before.exits, 2, "at the plant, and until the ring is open");
        let detour = rig.paused.detour().expect("it is laid");
        // The counters of dropped hits were allocated before the ring.
        let ring = RING + (2 << 20);
        detour.put(ring + RING_HEAD, &(2 * RING_LIMIT).to_le_bytes());
        for n in 0..7 {
            assert_eq!(rig.call(at, n), n + 1);
        }
        let told = rig.probe(0);
        assert_eq!((told.hits, told.exits), (before.hits, before.exits));
        assert_eq!(told.missed.get("ring-full"), Some(&7));
        rig.engine
            .set_enabled(&rig.paused, ids[0], false)
            .expect("set");
        let told = rig.probe(0);
        assert_eq!(told.missed.get("ring-full"), Some(&7), "it stays known");
    }
}

/// Taken slots that are not filled yet block no reader, and are reported once filled.
#[test]
fn unfilled_slot_blocks_no_later_record() {
    let (rig, at) = recording();
    let mut slow = rig.calling(at, 77, STACK - 0x400);
    while rig.detour_word(RING + RING_HEAD) == 0 {
        assert_eq!(rig.run(&mut slow, 1), Stepped::On);
    }
    for n in 78..80 {
        rig.call(at, n);
        assert_eq!(rig.counted(0).0, n - 75);
        assert_eq!(rig.detour_word(RING + RING_TAIL), 0, "its slot is not free");
    }
    assert_eq!(rig.run(&mut slow, 100), Stepped::Returned);
    assert_eq!(rig.counted(0).0, 5);
    assert_eq!(rig.detour_word(RING + RING_TAIL), 3);
    let told: Vec<_> = rig.hits().iter().map(|hit| hit.args[0].0).collect();
    assert_eq!(told, [5, 6, 78, 79, 77]);
}

/// A guest write to the ring affects only the guest's own records.
#[test]
fn a_guest_that_writes_to_the_ring_harms_itself() {
    let (rig, at) = recording();
    let detour = rig.paused.detour().expect("it is laid");
    // A record of no detour part.
    detour.put(RING + RING_FIRST, &0xdead_u32.to_le_bytes());
    detour.put(RING + RING_HEAD, &1_u64.to_le_bytes());
    assert_eq!(rig.counted(0).0, 2);
    assert_eq!(rig.notes().len(), 1, "it is told once");
    for head in [u64::MAX, 1 << 63, RING_LIMIT * 100, 2] {
        detour.put(RING + RING_HEAD, &head.to_le_bytes());
        for n in 0..3 {
            assert_eq!(rig.call(at, n), n + 1);
        }
        let _ = rig.engine.take_out_records();
    }
    let (hits, _, _) = rig.counted(0);
    assert!(hits <= 2 + 12, "{hits}");
    assert_eq!(rig.notes().len(), 1);
}

/// From every instruction in the detour, the call returns the right value, and is reported once if the call took the jump.
#[test]
fn call_in_a_recording_detour_is_emitted_once_when_plants_go() {
    let (kernel, at) = roomy_on_3();
    for comes_back in [false, true] {
        let mut told = Vec::new();
        for steps in 0..60 {
            let rig = Rig::recording(&kernel, &["probed"]);
            rig.call(at, 5);
            rig.call(at, 6);
            let mut vcpu = rig.calling(at, 4, STACK - 0x100);
            (vcpu.regs.rax, vcpu.regs.rcx, vcpu.regs.rdx) = (0x11, 0x22, 0x33);
            if rig.run(&mut vcpu, steps) == Stepped::Returned {
                break;
            }
            rig.engine.disarm_all(&rig.paused).expect("disarmed");
            if comes_back {
                rig.engine.set_armed(&rig.paused, true).expect("armed");
            }
            assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
            let regs = vcpu.regs;
            let left = (regs.rax, regs.rcx, regs.rdx, regs.rflags, regs.rsp);
            assert_eq!(left, (5, 0x22, 0x33, FLAGS, STACK - 0x100), "{steps}");
            told.push(rig.counted(0).0 - 2);
            assert_eq!(rig.hits().len() as u64, rig.counted(0).0);
            assert!(rig.notes().is_empty());
        }
        assert!(told.len() > 50, "each instruction of it");
        let (at_site, in_detour) = told.split_at(1);
        assert_eq!(at_site, [u64::from(comes_back)]);
        assert!(in_detour.iter().all(|told| *told == 1), "{told:?}");
    }
}

#[test]
fn exit_from_the_detour_of_a_disabled_probe_is_counted() {
    let (kernel, at) = roomy_on_3();
    for kind in ["trace", "return", "handler"] {
        let mut late = 0;
        for steps in 1..60 {
            let looks = Arc::new(CountingHandler::default());
            let probe = match kind {
                "trace" => new("probed"),
                "return" => followed("probed", Action::Trace),
                _ => filtered(
                    "arg0 < 4",
                    ProbeConfig {
                        action: EngineAction::Handle(Arc::clone(&looks) as _),
                        ..new("probed")
                    },
                ),
            };
            let rig = Rig::recording(&kernel, &[]);
            let ids = rig.engine.register(&rig.paused, &[probe]);
            let ids = ids.expect("registered");
            rig.call(at, 2);
            // The ring is not open, or the handler is called: the detour exits.
            let mut vcpu = rig.calling(at, 3, STACK - 0x100);
            if rig.run(&mut vcpu, steps) == Stepped::Returned {
                break;
            }
            let before = rig.probe(0);
            rig.engine
                .set_enabled(&rig.paused, ids[0], false)
                .expect("set");
            assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
            assert_eq!(vcpu.regs.rax, 4);
            let after = rig.probe(0);
            let disarmed =
                |probe: &ProbeSummary| probe.missed.get("disarmed").copied().unwrap_or(0);
            let missed = disarmed(&after) - disarmed(&before);
            match kind {
                "trace" => {
                    // Reported, as a record would be.
                    let counted = (after.hits, missed, rig.hits().len());
                    assert_eq!(counted, (2, 0, 2), "{steps}");
                    late += after.hits - before.hits;
                }
                "return" => {
                    let returns = after.returns.zip(after.in_flight);
                    let (returns, in_flight) = returns.expect("a return probe");
                    let all: u64 = after.missed.values().sum();
                    assert_eq!((after.hits, after.hits), (2, returns + in_flight + all));
                    late += missed;
                }
                _ => {
                    let looked = looks.0.load(Ordering::Relaxed);
                    let counted = (after.hits + missed, looked);
                    assert_eq!(counted, (2, after.hits), "{steps}");
                    late += missed;
                }
            }
        }
        assert!(
            late > 10,
            "{kind}: {late} at the instructions before the exit"
        );
    }
}

#[test]
fn without_the_number_of_the_processor_hits_exit() {
    let (kernel, at) = one_roomy();
    let rig = Rig::with(&kernel, &["kprobe:probed"], ABILITIES);
    rig.engine.set_optimising(&rig.paused, true).expect("set");
    rig.call(at, 0);
    let why = rig.probe(0).unoptimised.expect("a reason");
    assert!(why.contains("number of the processor"), "{why}");
    assert_eq!(rig.shown::<1>(at), [0xee]);
}

impl Rig {
    fn detour_word(&self, at: u64) -> u64 {
        let detour = self.paused.detour().expect("it is laid");
        detour.read_u64(Gpa(at)).expect("memory")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// An exit and a record report the same registers.
    #[test]
    fn registers_are_as_they_were(values: [u64; 14], flags in 0_u64..0x1000) {
        let (kernel, at) = roomy_on_3();
        let told = [false, true].map(|optimise| {
            let rig = Rig::recording(&kernel, &["probed"]);
            rig.call(at, 0);
            rig.call(at, 0);
            rig.engine.set_optimising(&rig.paused, optimise).expect("set");
            let mut vcpu = rig.calling(at, 4, STACK);
            vcpu.index = 3;
            let regs = &mut vcpu.regs;
            [
                regs.rax, regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp, regs.r8,
                regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14,
            ] = values;
            // The arithmetic flags, and the interrupt flag.
            regs.rflags = flags & 0x8d5 | 0x202;
            let before = *regs;
            assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
            let expected = vmm::kvm_regs {
                rax: (1 + before.rdi) & 0xffff_ffff,
                rip: RETURN,
                rsp: STACK,
                ..before
            };
            assert_eq!(vcpu.regs, expected);
            let exits = rig.counted(0).1;
            (timeless(rig.hits().last().expect("told")), exits)
        });
        prop_assert_eq!(&told[0].0, &told[1].0);
        prop_assert_eq!((told[0].1, told[1].1), (3, 2));
    }
}
