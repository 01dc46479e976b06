//! Adding and removing probes while the guest works.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use manifest::ProbeConfig;
use probes::Engine;
use vmm::{Control, End};

use super::boot::Watch;
use super::mode::Lifetime;
use crate::busy::counting::is_accounted;
use errors::chain;

/// The round of the workload at the first change.
const FIRST_ROUND: u32 = 2;
/// The number of the workload's rounds between two changes.
const ROUNDS: u32 = 4;
/// The minimum time with probes, in a guest whose rounds end at once.
const LEAST: Duration = Duration::from_millis(500);

/// A running guest.
#[derive(Debug)]
pub(super) struct Live<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) control: &'a Control,
    pub(super) watch: &'a Watch,
    /// The guest's serial input.
    pub(super) input: &'a UnixStream,
}

impl Live<'_> {
    /// Waits until the workload has ended the given round. `false` if the guest ends before.
    fn await_round(&self, round: u32) -> bool {
        self.watch.await_text(&format!("workload: round {round}\r"))
    }

    fn add(&self, probes: &[ProbeConfig]) -> Result<(), String> {
        let prepared = self.engine.prepare(probes).map_err(chain)?;
        let paused = self.control.pause_all();
        self.engine
            .register_prepared(&paused, prepared)
            .map_err(chain)?;
        Ok(())
    }

    fn remove_all(&self) -> Result<(), String> {
        let paused = self.control.pause_all();
        let summaries = self.engine.inventory().summaries();
        if let Some(wrong) = summaries
            .iter()
            .find(|probe| probe.returns.is_some() && !is_accounted(probe))
        {
            return Err(format!(
                "entries are not accounted for before the removal: {wrong:?}"
            ));
        }
        let ids = self.engine.inventory().ids();
        self.engine.unregister(&paused, &ids).map_err(chain)?;
        Ok(())
    }
}

/// Adds and removes probes according to `lifetime`, and lets the guest end. The judge handles a guest that ends earlier.
pub(super) fn drive(
    lifetime: Lifetime,
    live: &Live<'_>,
    probes: &[ProbeConfig],
) -> Result<(), String> {
    let done = match lifetime {
        Lifetime::WholeBoot => return Ok(()),
        Lifetime::AddedLater => add_later(live, probes),
        Lifetime::Rearmed => rearm(live, probes),
    };
    if done.is_err() {
        live.control.end(End::Stopped);
    }
    done
}

fn add_later(live: &Live<'_>, probes: &[ProbeConfig]) -> Result<(), String> {
    if !live.await_round(FIRST_ROUND) {
        return Ok(());
    }
    live.add(probes)?;
    work(live, FIRST_ROUND + ROUNDS)
}

fn rearm(live: &Live<'_>, probes: &[ProbeConfig]) -> Result<(), String> {
    if !live.await_round(FIRST_ROUND) {
        return Ok(());
    }
    live.remove_all()?;
    if !live.await_round(FIRST_ROUND + ROUNDS) {
        return Ok(());
    }
    live.add(probes)?;
    work(live, FIRST_ROUND + 2 * ROUNDS)
}

/// Lets the guest work at least until the given round, and end.
fn work(live: &Live<'_>, until: u32) -> Result<(), String> {
    std::thread::sleep(LEAST);
    if !live.await_round(until) || live.watch.is_finished() {
        return Ok(());
    }
    (&mut &*live.input).write_all(b"\n").map_err(chain)
}
