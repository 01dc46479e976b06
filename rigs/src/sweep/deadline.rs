//! The end of a guest that hangs.
//!
//! Probes make a guest slow in known steps: each exit takes what the self-test measured. A boot is given that time besides
//! its own, so that a probe on a function that the kernel calls for each page does not look like one that stops the guest.

use std::time::{Duration, Instant};

use probes::Engine;
use vmm::{Control, End};

use super::boot::{Ended, Limits, Watch};

const LOOK: Duration = Duration::from_secs(2);
/// So many hits of one probe without a line are a livelock. Before memory is set up a kernel says nothing for as many returns
/// as it takes to go through its tables: `__x86_return_thunk` has most.
const LIVELOCK_HITS: u64 = 3_000_000;
/// What the time of an exit is multiplied with: other work on the host makes exits slower than the self-test's were.
const EXIT_TIMES: u32 = 6;
/// Exits are given no more than this time.
pub(super) const EXITS_MAX: Duration = Duration::from_secs(900);

/// When a boot is ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) limits: Limits,
    /// What one exit takes.
    pub(super) exit: Duration,
}

/// How far a guest has come.
#[derive(Clone, Debug)]
struct Progress {
    /// Time since the last line.
    silence: Duration,
    /// Hits of each probe.
    hits: Vec<u64>,
    exits: u64,
}

/// What is remembered of the looks before.
#[derive(Clone, Debug)]
struct Last {
    /// The hits when the last line came.
    hits_at_line: Vec<u64>,
    hits: Vec<u64>,
    hit_at: Duration,
}

impl Deadline {
    /// Ends a guest that hangs, and says how. Returns when the session has ended.
    pub(super) fn end_stuck_guest(
        &self,
        watch: &Watch,
        control: &Control,
        engine: &Engine,
    ) -> Option<Ended> {
        let began = Instant::now();
        let mut last = None;
        while !watch.wait(LOOK) {
            let probes = engine.summaries();
            let progress = Progress {
                silence: watch.silence(),
                hits: probes.iter().map(|probe| probe.hits).collect(),
                exits: probes.iter().map(|probe| probe.exits).sum(),
            };
            if let Some(ended) = self.look(&mut last, began.elapsed(), progress) {
                control.end(End::Stopped);
                return Some(ended);
            }
        }
        None
    }

    /// Whether a guest hangs that has come so far at `now`.
    fn look(&self, last: &mut Option<Last>, now: Duration, progress: Progress) -> Option<Ended> {
        let Progress {
            silence,
            hits,
            exits,
        } = progress;
        let last = last.get_or_insert_with(|| Last {
            hits_at_line: hits.clone(),
            hits: hits.clone(),
            hit_at: now,
        });
        if hits != last.hits {
            last.hit_at = now;
        }
        if silence < LOOK || hits.len() != last.hits_at_line.len() {
            last.hits_at_line.clone_from(&hits);
        }
        let pairs = last.hits_at_line.iter().zip(&hits);
        let most = pairs.map(|(before, now)| now.saturating_sub(*before)).max();
        last.hits = hits;
        let quiet = silence.min(now.saturating_sub(last.hit_at));
        let total = self.limits.total + self.time_of(exits);
        match most {
            _ if quiet > self.limits.silence => Some(Ended::Silent(quiet)),
            Some(hits) if hits > LIVELOCK_HITS => Some(Ended::Livelock(hits)),
            _ if now > total => Some(Ended::OverLimit(total)),
            _ => None,
        }
    }

    fn time_of(&self, exits: u64) -> Duration {
        let exits = u32::try_from(exits).unwrap_or(u32::MAX);
        let time = self.exit.checked_mul(exits);
        let time = time.and_then(|time| time.checked_mul(EXIT_TIMES));
        time.map_or(EXITS_MAX, |time| time.min(EXITS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        total: Duration::from_secs(100),
        silence: Duration::from_secs(30),
    };

    /// What the first look says that ends the guest, of looks every ten seconds at a guest whose last line came at 0.
    fn ended(exit: Duration, hits: impl Fn(u64) -> Vec<u64>) -> Option<Ended> {
        let deadline = Deadline {
            limits: LIMITS,
            exit,
        };
        let mut last = None;
        (0..=30).find_map(|look| {
            let now = Duration::from_secs(10 * look);
            let hits = hits(look);
            let progress = Progress {
                silence: now,
                exits: hits.iter().sum(),
                hits,
            };
            deadline.look(&mut last, now, progress)
        })
    }

    #[test]
    fn guest_without_lines_and_hits_is_silent() {
        let silent = Some(Ended::Silent(Duration::from_secs(40)));
        assert_eq!(ended(Duration::ZERO, |_| vec![]), silent);
        assert_eq!(ended(Duration::ZERO, |_| vec![7, 0]), silent);
    }

    #[test]
    fn guest_that_is_silent_because_its_probes_exit_is_given_their_time() {
        let busy = |look: u64| vec![10_000 * look.min(20), 0];
        assert_eq!(
            ended(Duration::from_millis(1), busy),
            Some(Ended::Silent(Duration::from_secs(40)))
        );
        assert_eq!(
            ended(Duration::ZERO, busy),
            Some(Ended::OverLimit(LIMITS.total))
        );
    }

    #[test]
    fn probe_that_is_hit_without_end_is_a_livelock() {
        let hits = |look: u64| vec![7, 1_000_000 * look];
        assert_eq!(
            ended(Duration::from_micros(100), hits),
            Some(Ended::Livelock(4_000_000))
        );
    }

    #[test]
    fn exits_without_end_are_given_a_bounded_time() {
        let deadline = Deadline {
            limits: LIMITS,
            exit: Duration::from_secs(1),
        };
        assert_eq!(deadline.time_of(10), Duration::from_secs(60));
        assert_eq!(deadline.time_of(u64::MAX), EXITS_MAX);
    }
}
