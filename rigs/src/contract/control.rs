//! A control thread at work while the guest is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use probes::Engine;
use vmm::Control;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::Ran;

pub(super) const CASES: [Case; 3] = [
    Case::new("pauses", Plants::Each, &[2], pauses),
    Case::new("pause", Plants::Chosen, &[2], pause),
    Case::new("come-and-go", Plants::Each, &[2], come_and_go),
];

/// The time for which the guest runs before the next disturbance: where a pause takes long, the guest would otherwise make no progress.
const BREATH: Duration = Duration::from_millis(1);

/// Runs the guest while another thread repeats `work`. Returns the number of repetitions.
fn beside(
    here: &Here<'_>,
    cmdline: &str,
    probes: &[&str],
    work: impl Fn(&Control, &Engine) + Sync,
) -> (Ran, u64) {
    let guest = here.guest(cmdline).probes(probes).prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let over = AtomicBool::new(false);
    let (ran, rounds) = std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut rounds = 0;
            while !over.load(Ordering::Acquire) {
                work(&control, &engine);
                rounds += 1;
                std::thread::sleep(BREATH);
            }
            rounds
        });
        let ran = guest.run();
        over.store(true, Ordering::Release);
        (ran, working.join().expect("worked"))
    });
    ran.assert_good();
    // In Bochs a run is short, by the emulated clock.
    assert!(rounds > 1, "{rounds} rounds");
    (ran, rounds)
}

/// Two vCPUs hit probes, some hits pause the other vCPU, and a thread pauses both.
fn pauses(here: &Here<'_>) {
    let probes = ["kprobe:fn_rep", "kprobe:fn_out", "kprobe:fn_lock"];
    let (ran, _) = beside(here, "run=smp=80", &probes, |control, _| {
        drop(control.pause_all());
    });
    ran.assert_counts(&[]);
    assert_eq!(ran.hits("fn_out"), 160);
}

/// While a pause lasts, no vCPU runs: no hit comes in, and memory stands still.
fn pause(here: &Here<'_>) {
    let guest = here.guest("run=smp=60").prepare();
    let (control, observer) = (guest.session.control(), guest.observer.clone());
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            for hits in [100, 1000, 2000] {
                observer.wait_for_hits(hits);
                let paused = control.pause_all();
                let (before, console) = (observer.hits().len(), observer.console());
                std::thread::yield_now();
                // Before the present pause ends, no other pause can begin and no vCPU can run.
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

/// Every plant goes and comes back, over and over, while two vCPUs stand at them or are on their way past them.
fn come_and_go(here: &Here<'_>) {
    let (ran, _) = beside(here, "run=smp=60", &["kprobe:fn_*"], |control, engine| {
        for armed in [false, true] {
            std::thread::sleep(BREATH);
            let paused = control.pause_all();
            engine.set_armed(&paused, armed).expect("it is changed");
        }
    });
    let hits: u64 = ran.summary.probes.iter().map(|probe| probe.hits).sum();
    assert_eq!(hits, ran.observer.hits().len() as u64);
    let calls: u64 = ran.outcome.counts.values().sum();
    assert!((1..=calls).contains(&hits), "{hits} hits of {calls} calls");
}
