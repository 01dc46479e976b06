//! A control thread at work while the guest is.

use std::sync::atomic::{AtomicBool, Ordering};

use probes::Tier;

use crate::guest::{Guest, plant_bytes};

/// Two vCPUs at probes that are stepped, each of which pauses the other, and a thread that pauses both.
#[test]
fn pauses_from_everywhere_lose_nothing() {
    for plant in plant_bytes() {
        let guest = Guest::new("run=smp=80")
            .cpus(2)
            .probes(["kprobe:fn_rep", "kprobe:fn_out", "kprobe:fn_lock"])
            .plant(plant)
            .prepare();
        let control = guest.session.control();
        let over = AtomicBool::new(false);
        let (ran, pauses) = std::thread::scope(|scope| {
            let pausing = scope.spawn(|| {
                let mut pauses = 0;
                while !over.load(Ordering::Acquire) {
                    drop(control.pause_all());
                    pauses += 1;
                    std::thread::yield_now();
                }
                pauses
            });
            let ran = guest.run();
            over.store(true, Ordering::Release);
            (ran, pausing.join().expect("paused"))
        });
        ran.assert_good();
        ran.assert_counts(&[]);
        assert_eq!(ran.hits("fn_out"), 160);
        assert_eq!(ran.probe("kprobe:fn_rep").tier, Some(Tier::Stepped));
        assert!(pauses > 10, "{pauses} pauses");
    }
}

/// While a pause lasts, no vCPU runs: no hit comes in, and memory stands still.
#[test]
fn a_pause_stops_every_vcpu() {
    let guest = Guest::new("run=smp=60").cpus(2).prepare();
    let (control, observer) = (guest.session.control(), guest.observer.clone());
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            for hits in [100, 1000, 2000] {
                observer.wait_for_hits(hits);
                let paused = control.pause_all();
                let (before, console) = (observer.hits().len(), observer.console());
                std::thread::yield_now();
                // Another pause cannot begin before this one ends, nor may a vCPU have run until then.
                assert_eq!(observer.hits().len(), before);
                assert_eq!(observer.console(), console);
                drop(paused);
            }
        });
        guest.run()
    });
    ran.assert_good();
    ran.assert_counts(&[]);
}

/// Every plant goes and comes back, over and over, while two vCPUs stand at them or are being stepped past them.
#[test]
fn plants_that_come_and_go_disturb_nobody() {
    for plant in plant_bytes() {
        let guest = Guest::new("run=smp=60").cpus(2).plant(plant).prepare();
        let (control, engine) = (guest.session.control(), guest.session.engine().clone());
        let over = AtomicBool::new(false);
        let (ran, rounds) = std::thread::scope(|scope| {
            let arming = scope.spawn(|| {
                let mut rounds = 0;
                while !over.load(Ordering::Acquire) {
                    for armed in [false, true] {
                        let paused = control.pause_all();
                        engine.set_armed(&paused, armed).expect("it is changed");
                    }
                    rounds += 1;
                }
                rounds
            });
            let ran = guest.run();
            over.store(true, Ordering::Release);
            (ran, arming.join().expect("armed"))
        });
        ran.assert_good();
        assert!(rounds > 10, "{rounds} rounds");
        let hits: u64 = ran.summary.probes.iter().map(|probe| probe.hits).sum();
        assert_eq!(hits, ran.observer.hits().len() as u64);
        let calls: u64 = ran.outcome.counts.values().sum();
        assert!((1..=calls).contains(&hits), "{hits} hits of {calls} calls");
    }
}
