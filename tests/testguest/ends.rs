//! The ways in which a guest ends.

use std::time::Duration;

use hyprobe_rigs::contract::Here;
use hyprobe_rigs::way::Way;
use manifest::GuestEnd;
use text::PlantByte;
use vmm::End;

use crate::BENCH;

/// One vCPU; the engine chooses the byte.
fn one() -> Here<'static> {
    Here::new(&BENCH, None, 1)
}

/// One vCPU, with each byte that this KVM delivers.
fn each() -> impl Iterator<Item = Here<'static>> {
    [PlantByte::Port, PlantByte::Int3]
        .map(Way::Byte)
        .into_iter()
        .filter(|way| BENCH.delivers(*way))
        .map(|way| Here::new(&BENCH, Some(way), 1))
}

#[test]
fn exit_code_is_reported() {
    let ran = one().guest("run=calls=1,exit=7").run();
    assert_eq!(ran.end(), (GuestEnd::Exit, Some("7")));
    assert_eq!(ran.hits("fn_nop"), 1);
}

#[test]
fn a_reset_ends_the_run() {
    let here = one();
    let ran = here.guest("run=calls=2 exit=reset").run();
    assert_eq!(ran.end(), (GuestEnd::Reset, None));
    assert!(ran.outcome.is_good());
    ran.assert_counts(&[]);
}

#[test]
fn a_triple_fault_ends_the_run() {
    for here in each() {
        let ran = here.guest("run=calls=2,triple").run();
        assert_eq!(ran.end(), (GuestEnd::TripleFault, None));
        assert_eq!(ran.hits("fn_nop"), 2);
    }
}

#[test]
fn a_guest_that_nothing_can_wake_has_halted() {
    for cpus in [1, 2] {
        let here = Here::new(&BENCH, None, cpus);
        let ran = here.guest("run=calls=2,panic").run();
        assert_eq!(ran.end(), (GuestEnd::Halted, None), "{cpus} vCPUs");
        assert!(ran.observer.console().contains("Kernel panic"));
    }
}

#[test]
fn a_guest_that_hangs_runs_out_of_time() {
    let here = one();
    let ran = here
        .guest("run=calls=1,hang")
        .timeout(Duration::from_millis(1500))
        .run();
    assert_eq!(ran.end(), (GuestEnd::Timeout, None));
    assert_eq!(ran.hits("fn_nop"), 1);
    assert!(Duration::from_nanos(ran.summary.ran_ns) >= Duration::from_millis(1500));
}

#[test]
fn another_thread_may_stop_it() {
    for cpus in [1, 2] {
        let here = Here::new(&BENCH, None, cpus);
        let guest = here.guest("run=calls=1,hang").prepare();
        let (control, observer) = (guest.session.control(), guest.observer.clone());
        let ran = std::thread::scope(|scope| {
            scope.spawn(move || {
                observer.wait_for_console("calls ok");
                control.end(End::Stopped);
            });
            guest.run()
        });
        assert_eq!(ran.end(), (GuestEnd::Stopped, None));
    }
}

#[test]
fn a_guest_that_is_stopped_before_it_runs_never_runs() {
    let here = one();
    let guest = here.guest("run=calls=1").prepare();
    guest.session.control().end(End::Stopped);
    let ran = guest.run();
    assert_eq!(ran.end(), (GuestEnd::Stopped, None));
    assert_eq!(ran.observer.console(), "");
    assert_eq!(ran.hits("fn_nop"), 0);
}

#[test]
fn a_failure_of_the_guests_own_is_its_exit_code() {
    let here = one();
    let ran = here.guest("run=nonsense,calls=1").run();
    assert_eq!(ran.end(), (GuestEnd::Exit, Some("1")));
    assert!(!ran.outcome.is_good());
}

/// `stock::ends` has the other way out of the machine, system-management mode, which this host's KVM may not know.
#[test]
fn guest_that_restarts_its_first_processor_has_no_firmware() {
    let here = one();
    let ran = here.guest("run=calls=1,init").run();
    let (end, detail) = ran.end();
    assert_eq!(end, GuestEnd::Failed);
    let said = "no firmware to begin with";
    assert!(
        detail.is_some_and(|detail| detail.contains(said)),
        "{detail:?}"
    );
}

/// The last instruction executed by the guest is single-stepped, and does not complete.
#[test]
fn a_stepped_instruction_may_be_the_end() {
    for here in each() {
        for (scenario, instruction, ending) in [
            ("halt", "hlt", GuestEnd::Halted),
            ("triple", "ud2", GuestEnd::TripleFault),
        ] {
            let spec = probe_at(&format!("scenario_{scenario}"), instruction);
            let ran = here
                .guest(&format!("run=calls=1,{scenario}"))
                .probes([&spec])
                .run();
            assert_eq!(ran.end(), (ending, None), "{scenario}");
            assert_eq!(ran.probe(&spec).hits, 1, "{scenario}");
        }
    }
}

/// A probe at the first instruction of `function` with the disassembly `text`.
fn probe_at(function: &str, text: &str) -> String {
    let kernel = BENCH.kernel();
    let symbol = kernel.symbols().lookup(function).expect(function);
    let offset = kernel
        .instructions(&symbol)
        .map(|decoded| decoded.expect("code"))
        .find(|decoded| decoded.text() == text)
        .map(|decoded| decoded.at().0 - symbol.address.0)
        .expect(text);
    format!("kprobe:{function}+{offset:#x}")
}
