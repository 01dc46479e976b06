//! Bad ends: the exit code and the summary say which.

use probes::GuestEnd;

use crate::boot::{Boot, Stock, probe};

const IMAGE: &str = "debian-6.1";

#[test]
fn a_panic_is_told() {
    let stock = Stock::fetch(IMAGE);
    let ran = Boot::new(&stock, "opens=7 end=exit")
        .probe("kprobe:do_sys_openat2")
        .run();
    assert_eq!(ran.code, Some(4), "{}", ran.told());
    assert!(ran.console.contains("Kernel panic"), "{}", ran.told());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Panic);
    let detail = summary.guest.detail.as_deref().unwrap_or_default();
    assert!(detail.contains("kill init"), "{detail}");
    assert_eq!(
        probe(&summary, "kprobe:do_sys_openat2").hits,
        ran.counts().openat
    );
}

#[test]
fn a_timeout_is_told() {
    let stock = Stock::fetch(IMAGE);
    // It makes the same calls for far longer than it is given.
    let ran = Boot::new(&stock, "getpids=1 repeat=1000000 pause=1")
        .probe("kprobe:__x64_sys_getpid")
        .option("--timeout", "10s")
        .run();
    assert_eq!(ran.code, Some(5), "{}", ran.told());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Timeout);
    assert!(summary.ran_ns >= 10_000_000_000, "{} ns", summary.ran_ns);
}
