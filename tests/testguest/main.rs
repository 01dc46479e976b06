//! The test guest on this host's KVM, probed, and every count compared with the guest's own.
//!
//! The guest checks itself: each scenario checks registers, flags, memory and faults, so a disturbance by a probe fails in the guest. The
//! requirements for every KVM are in the rigs' contract, and run here as in the rigs; the modules below test this machine's side. Built
//! with the feature `test-kvm`, which promises a /dev/kvm.

#![cfg(feature = "test-kvm")]

mod confined;
mod contract;
mod debuginfod;
mod ends;
mod hostile;
mod identity;
mod judged;
mod lines;
mod outputs;
mod overhead;
mod panics;
mod remote;
mod stalled;

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use hyprobe_rigs::contract::Bench;

/// Longer than any scenario takes where ring 0 is interpreted.
const TIMEOUT: Duration = Duration::from_secs(100);

static BENCH: LazyLock<Bench> = LazyLock::new(|| {
    // The guests' threads work behind their filters, as they do in the command.
    confine::load_filters().expect("filters");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("testguest");
    let guest = guest_images::build_testguest(&dir).expect("the test guest compiles");
    Bench::open(&guest, TIMEOUT).expect("the feature `test-kvm` promises a usable /dev/kvm")
});
