//! Pauses longer than the guest's watchdogs allow: the guest reports no soft lockup, since hyprobe reports the pause.

use std::thread::sleep;
use std::time::Duration;

use manifest::ProbeConfig;

use super::guest::{Guest, Live};

/// The watchdog's threshold is a second; a soft lockup is two.
const WORKLOAD: &str = "watchdog_thresh=1 procs=2 opens=20 reads=20 getpids=20 nappers=2 naps=2 nap=1 repeat=1000000 listen=1";
const PAUSE: Duration = Duration::from_secs(4);
/// Between two pauses the guest works, and its watchdog checks the guest.
const WORK: Duration = Duration::from_secs(2);
const PAUSES: u32 = 3;
const LIMIT: Duration = Duration::from_secs(200);

pub(super) fn run(guest: &Guest<'_>) -> Result<String, String> {
    let no_probes: [ProbeConfig; 0] = [];
    let (ran, ()) = guest.run(WORKLOAD, &no_probes, LIMIT, drive)?;
    if ran.slow == 0 {
        return Ok(format!("{PAUSES} pauses of {PAUSE:?}, no lockup reported"));
    }
    let lockup = ran.console.lines().find(|line| line.contains("lockup"));
    Err(format!("the guest took a pause for a lockup: {lockup:?}"))
}

fn drive(live: &Live<'_>) -> Result<(), String> {
    live.await_text("workload: round 2", LIMIT)?;
    for _ in 0..PAUSES {
        sleep(WORK);
        let paused = live.control.pause_all();
        sleep(PAUSE);
        drop(paused);
    }
    sleep(WORK);
    live.type_line()
}
