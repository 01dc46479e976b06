//! The end of a guest that hangs.
//!
//! Probes make a guest slow in known steps: the self-test measures the time of an exit. A boot is granted the time of its exits
//! besides its own time. A probe on a function that the kernel calls for each page then does not look like a hang. Hits are no
//! progress: the timer continues to interrupt a guest that hangs.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use events::ProbeId;
use probes::Engine;
use vmm::{Control, End};

use super::boot::{Ended, Limits, Watch};

const LOOK: Duration = Duration::from_secs(2);
/// The factor for the time of an exit: other work on the host makes exits slower than in the self-test.
const EXIT_TIMES: u32 = 6;
/// The maximum time granted for exits.
pub(super) const EXITS_MAX: Duration = Duration::from_secs(900);

/// The time limits of a boot, and the time of an exit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) limits: Limits,
    /// The time of an exit.
    pub(super) exit: Duration,
}

/// The progress of a guest.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Lines on its console.
    lines: u64,
    /// The time since the last line.
    silence: Duration,
    exits: u64,
}

/// The lines at the last check, and the exits at the last new line.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    lines: u64,
    exits: u64,
}

impl Deadline {
    /// Ends a guest that hangs, and returns the reason. Returns when the session has ended.
    pub(super) fn end_stuck_guest(
        &self,
        watch: &Watch,
        control: &Control,
        engine: &Engine,
    ) -> Option<Ended> {
        let watching = AssertUnwindSafe(|| self.watch(watch, engine));
        let ended = catch_unwind(watching).unwrap_or_else(|_| {
            let why = "the thread that watches the guest panicked";
            Some(Ended::Broken(why.to_owned()))
        });
        if ended.is_some() {
            control.end(End::Stopped);
        }
        ended
    }

    fn watch(&self, watch: &Watch, engine: &Engine) -> Option<Ended> {
        let began = Instant::now();
        let mut last = Last::default();
        // The exits of a removed probe count, too: their time was granted.
        let mut of_probes: BTreeMap<ProbeId, u64> = BTreeMap::new();
        while !watch.wait(LOOK) {
            // If a line comes after this check, the next check sees the line.
            let (lines, silence) = watch.progress();
            of_probes.extend(engine.inventory().exits());
            // A kernel patches all its returns and calls between two lines: a hundred thousand writes to probed pages.
            let exits = of_probes.values().sum::<u64>() + engine.unprobed_exits().guest_writes();
            let progress = Progress {
                lines,
                silence,
                exits,
            };
            let ended = self.look(&mut last, began.elapsed(), progress);
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    /// Whether a guest with this progress at `now` hangs.
    fn look(&self, last: &mut Last, now: Duration, progress: Progress) -> Option<Ended> {
        let Progress {
            lines,
            silence,
            exits,
        } = progress;
        if lines != last.lines {
            *last = Last { lines, exits };
        }
        let total = self.limits.total + self.time_of(exits);
        if silence > self.limits.silence + self.time_of(exits - last.exits) {
            Some(Ended::Silent(silence))
        } else if now <= total {
            None
        } else if silence > self.limits.silence {
            // A guest that hangs in exits uses up the time granted for them.
            Some(Ended::SilentAtLimit(silence))
        } else {
            Some(Ended::OverLimit(total))
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
    const EXIT: Duration = Duration::from_millis(1);
    const LOOK_SECONDS: u64 = 10;

    /// The verdict of the first check that ends the guest. Checks come every ten seconds, and the guest prints a line before each
    /// of the first `lines` checks.
    fn ended(lines: u64, exits: impl Fn(u64) -> u64) -> Option<Ended> {
        let deadline = Deadline {
            limits: LIMITS,
            exit: EXIT,
        };
        let mut last = Last::default();
        (0..=200).find_map(|look| {
            let progress = Progress {
                lines: look.min(lines),
                silence: Duration::from_secs(LOOK_SECONDS * look.saturating_sub(lines)),
                exits: exits(look),
            };
            deadline.look(
                &mut last,
                Duration::from_secs(LOOK_SECONDS * look),
                progress,
            )
        })
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn guest_without_lines_is_silent_although_its_timer_goes_on() {
        assert_eq!(ended(0, |_| 0), Some(Ended::Silent(seconds(40))));
        // A hundred exits of the timer's interrupt in ten seconds: each check grants 0.6 s.
        let ticks = |look| 100 * look;
        assert_eq!(ended(0, ticks), Some(Ended::Silent(seconds(40))));
        assert_eq!(ended(2, ticks), Some(Ended::Silent(seconds(40))));
    }

    #[test]
    fn guest_that_is_silent_because_its_probes_exit_is_given_their_time() {
        // Ten thousand exits in ten seconds, for 200 s: each check grants a minute.
        let busy = |look: u64| 10_000 * look.min(20);
        assert_eq!(ended(0, busy), Some(Ended::Silent(EXITS_MAX + seconds(40))));
        assert_eq!(ended(7, busy), Some(Ended::Silent(seconds(820))));
    }

    #[test]
    fn guest_that_prints_without_end_is_over_its_limit() {
        assert_eq!(ended(1000, |_| 0), Some(Ended::OverLimit(LIMITS.total)));
    }

    #[test]
    fn guest_that_hangs_in_exits_late_is_silent_at_its_limit() {
        let livelock = |look: u64| 10_000 * look;
        let total = LIMITS.total + EXITS_MAX;
        let late = total.as_secs() / LOOK_SECONDS - 10;
        assert_eq!(
            ended(late, livelock),
            Some(Ended::SilentAtLimit(seconds(110)))
        );
    }

    #[test]
    fn exits_without_end_are_given_a_bounded_time() {
        let deadline = Deadline {
            limits: LIMITS,
            exit: seconds(1),
        };
        assert_eq!(deadline.time_of(10), seconds(60));
        assert_eq!(deadline.time_of(u64::MAX), EXITS_MAX);
        let livelock = |look: u64| 10_000 * look;
        assert_eq!(
            ended(0, livelock),
            Some(Ended::Silent(EXITS_MAX + seconds(40)))
        );
    }
}
