//! A few boots of the hostile guest: see `hyprobe_rigs::hostile`. `make hostile` makes as many boots as time allows.

use std::path::Path;
use std::time::Duration;

use hyprobe_rigs::hostile::Campaign;
use hyprobe_rigs::line::Backend;

/// Two of the seeds execute random bytes at the end.
const SEED: u64 = 14;
const BOOTS: u64 = 4;

#[test]
fn hostile_guests_end_their_own_run_and_harm_nothing() {
    let results = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hostile");
    let store = guest_images::Store::open().expect("a home directory");
    std::fs::create_dir_all(store.root()).expect("the cache");
    let campaign = Campaign {
        backends: &[Backend::Local],
        seed: SEED,
        limit: Duration::MAX,
        boots: BOOTS,
        hyprobe: Path::new(env!("CARGO_BIN_EXE_hyprobe")),
        cache: store.root(),
        results: &results,
    };
    let totals = campaign
        .run(&|line| println!("{line}"))
        .expect("the rig works");
    assert_eq!((totals.boots, totals.failed), (BOOTS, 0), "{totals}");
    // The set of acts depends on time.
    let missing = totals.shortcomings();
    let is_act = |what: &String| what.contains("no guest has done");
    assert!(missing.iter().all(is_act), "{missing:?}\n{totals}");
}
