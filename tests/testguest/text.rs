//! The guest's text, as the guest finds it.

use guest_images::testguest::text_checksum;

use crate::guest::{ELF, Guest, Ran, plant_bytes};

/// The `sum` of each checksum that the guest took, whether it was content or not.
fn sums(ran: &Ran) -> Vec<String> {
    let console = ran.observer.console();
    console
        .lines()
        .filter(|line| line.starts_with("testguest: checksum "))
        .filter_map(|line| line.split(' ').find_map(|word| word.strip_prefix("sum=")))
        .map(str::to_owned)
        .collect()
}

fn own_sum() -> String {
    format!("{:#x}", text_checksum(&ELF).expect("it has a text"))
}

#[test]
fn plants_show_in_it_and_stay() {
    let ran = Guest::new("run=checksum,calls=3,checksum")
        .probes(["kprobe:fn_nop"])
        .run();
    // The same sum twice, or the guest would have complained.
    ran.assert_good();
    let [first, second] = &sums(&ran)[..] else {
        panic!("two sums")
    };
    assert_eq!(first, second);
    assert_ne!(*first, own_sum());
}

#[test]
fn without_probes_it_is_that_of_the_file() {
    let ran = Guest::new("run=checksum").probes([] as [&str; 0]).run();
    ran.assert_good();
    assert_eq!(sums(&ran), [own_sum()]);
}

#[test]
fn after_the_probes_are_gone_it_is_that_of_the_file() {
    for plant in plant_bytes() {
        let guest = Guest::new("run=calls=60,checksum,calls=2,checksum")
            .plant(plant)
            .prepare();
        let (control, engine) = (guest.session.control(), guest.session.engine().clone());
        let observer = guest.observer.clone();
        let (ran, at_disarming) = std::thread::scope(|scope| {
            let disarming = scope.spawn(|| {
                observer.wait_for_hits(500);
                let paused = control.pause_all();
                engine.disarm_all(&paused).expect("every byte is put back");
                engine.summaries()
            });
            let ran = guest.run();
            (ran, disarming.join().expect("disarmed"))
        });
        ran.assert_good();
        assert_eq!(sums(&ran), [own_sum(), own_sum()]);
        // It was in the middle of the run, and there is not one hit later.
        for (then, end) in at_disarming.iter().zip(&ran.summary.probes) {
            assert_eq!(then.hits, end.hits, "{}", end.probe);
        }
        assert!(ran.hits("fn_nop") < ran.outcome.counts["fn_nop"]);
    }
}

#[test]
fn two_vcpus_do_not_notice_that_probes_go() {
    for plant in plant_bytes() {
        let guest = Guest::new("run=smp=60,checksum")
            .cpus(2)
            .plant(plant)
            .prepare();
        let (control, engine) = (guest.session.control(), guest.session.engine().clone());
        let observer = guest.observer.clone();
        let ran = std::thread::scope(|scope| {
            scope.spawn(|| {
                observer.wait_for_hits(1000);
                engine
                    .disarm_all(&control.pause_all())
                    .expect("every byte is put back");
            });
            guest.run()
        });
        ran.assert_good();
        assert_eq!(sums(&ran), [own_sum()]);
    }
}
