//! A panic on a thread of the VMM: the run fails, even if the guest ends well.

use std::sync::Arc;

use events::{Event, EventSink};
use hyprobe_rigs::contract::Here;
use hyprobe_rigs::contract::Observer;
use manifest::{GuestEnd, ProbeConfig, ProbeSpec};
use probes::{EngineAction, Handler, HitContext, PreOutcome};

use crate::BENCH;

/// Panics at the first hit.
#[derive(Debug)]
struct Panicking;

impl Handler for Panicking {
    fn pre(&self, _hit: &mut HitContext<'_>) -> PreOutcome {
        panic!("a handler's bug")
    }
}

/// Panics at the first event on the thread `of`.
#[derive(Debug)]
struct PanickingOn {
    of: &'static str,
    observer: Observer,
}

impl EventSink for PanickingOn {
    fn event(&self, event: Event) {
        assert_ne!(std::thread::current().name(), Some(self.of), "a sink's bug");
        self.observer.event(event);
    }
}

fn failed(ran: &hyprobe_rigs::contract::Ran, thread: &str, message: &str) {
    let (end, detail) = ran.end();
    let detail = detail.unwrap_or_default();
    assert_eq!(end, GuestEnd::Failed, "{detail}");
    assert!(
        detail.contains(&format!("thread `{thread}` panicked: ")),
        "{detail}"
    );
    assert!(detail.contains(message), "{detail}");
}

#[test]
fn panic_of_a_handler_on_a_vcpus_thread_fails_the_run() {
    for cpus in [1, 2] {
        let here = Here::new(&BENCH, None, cpus);
        let spec: ProbeSpec = "kprobe:fn_nop".parse().expect("a probe");
        let probe = ProbeConfig::from(spec).with_action(EngineAction::Handle(Arc::new(Panicking)));
        let ran = here.guest("run=calls=3").with([probe]).run();
        failed(&ran, "vcpu0", "a handler's bug");
    }
}

#[test]
fn panic_of_the_thread_that_takes_records_out_fails_the_run() {
    let here = Here::new(&BENCH, None, 1);
    let guest = here.guest("run=calls=2000").probes(["kprobe:fn_nop5"]);
    let guest = guest.prepare_with(|observer| {
        Arc::new(PanickingOn {
            of: "records",
            observer,
        })
    });
    failed(&guest.run(), "records", "a sink's bug");
}
