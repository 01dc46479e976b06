//! A sweep of a few functions, nested: see `hyprobe_rigs::sweep`.
//!
//! Built with the feature `test-nested`, which promises QEMU and a network or a filled image cache.

#![cfg(feature = "test-nested")]

use std::path::Path;
use std::time::Duration;

use hyprobe_rigs::line::{Backend, Line};
use hyprobe_rigs::sweep::campaign::Campaign;
use hyprobe_rigs::sweep::{Mode, Options, page};

/// Functions whose calls the workload counts.
const COUNTED: [&str; 4] = [
    "do_sys_openat2",
    "ksys_read",
    "hrtimer_nanosleep",
    "do_group_exit",
];

#[test]
fn functions_that_the_workload_counts_are_swept_without_harm() {
    let results = tempfile::tempdir().expect("tempdir");
    let sweep = Path::new(env!("CARGO_BIN_EXE_sweep"));
    let options = Options {
        modes: vec![Mode::Return],
        seed: Some(1),
        cpus: None,
        batch: 3,
        sample: None,
        with: COUNTED.map(str::to_owned).to_vec(),
        only_with: true,
        resume: false,
    };
    let mut campaign = Campaign {
        backend: Backend::Nested,
        image: "debian-6.1",
        options: &options,
        programs: sweep.parent().expect("it is in a directory"),
        results: results.path(),
        timeout: Duration::from_secs(240),
    };
    let report = |line: &Line| println!("{line:?}");
    let cells = campaign.run(&report).expect("the last line comes out");
    let [cell] = &cells[..] else {
        panic!("{cells:?}");
    };
    assert!(!cell.has_harm());
    let sum = cell.sum.clone().expect("a sum");
    assert_eq!(
        (sum.tally.probed, sum.boots, sum.restarts),
        (4, 2, 0),
        "{sum:?}"
    );
    assert!(sum.tally.hits > 100, "{sum:?}");
    assert!(sum.findings.is_empty(), "{sum:?}");
    // The page does not show samples.
    page::from_results(results.path()).expect_err("no page");

    // A resumed run repeats no known boot, and has the same sum.
    let resumed = Options {
        resume: true,
        ..options.clone()
    };
    campaign.options = &resumed;
    let again = campaign.run(&report).expect("the last line comes out");
    assert_eq!(again[0].sum.as_ref(), Some(&sum));
}
