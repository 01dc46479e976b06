//! The phases of a nested run, and the limits of their durations.
//!
//! ```text
//!            Started              stop asked for, or
//!                                 far beyond --timeout
//!  Booting ──────────▶ Running ───────────────────────▶ Stopping
//!     │                   │                                │
//!     │ stop asked for    │ Ending, Finished               │ Ending, Finished
//!     ▼                   ▼                                ▼
//!   ended              Draining ◀──────────────────────────┘
//!                         │ the last byte has arrived
//!                         ▼
//!                       ended
//! ```
//!
//! QEMU may end in any phase, or stand still before Draining, which ends the run. Each phase has a deadline, except Running without
//! `--timeout`. The state machine takes only times and facts,
//! and returns only a verdict, so tests reach every path.

use std::time::{Duration, Instant};

/// The period of the checks for a stop request and for QEMU's end. Output of the ports is noticed at once.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// From QEMU's last start to the run inside.
pub(super) const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// The run inside counts `--timeout` from the guest's first instruction; before that it reads the kernel's symbols.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(60);
/// After a stop request, the run pauses the vCPUs, removes the probes and sums up.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(15);
/// A reader may be slow: a pager, for example.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// From the first byte of a dump on, further bytes extend the limits for this time. A dump that takes longer comes from a guest that is too
/// large to dump nested, or from an inner side that sends a byte a minute.
const DUMP_LIMIT: Duration = Duration::from_secs(3600);

/// How far the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The outer Linux boots.
    Booting,
    /// The run inside is under way.
    Running,
    /// The run has been asked to end.
    Stopping,
    /// The guest has ended; the last output is on the way.
    Draining,
}

/// The facts at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// The run inside has reported the start.
    pub(super) started: bool,
    /// The run inside has reported the guest's end.
    pub(super) ending: bool,
    /// The run inside has reported the outcome.
    pub(super) finished: bool,
    /// All output of the run has arrived.
    pub(super) complete: bool,
    /// The bytes of the core file that have arrived.
    pub(super) dumped: u64,
    /// A port has delivered a line that violates the protocol.
    pub(super) violation: bool,
    /// A stop was requested.
    pub(super) stop: bool,
    /// QEMU has ended, and the ports have been read to the end.
    pub(super) ended: bool,
    /// QEMU has not ended, and one of its CPUs no longer uses processor time.
    pub(super) still: bool,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Wait.
    Wait,
    /// Ask the run inside to end.
    SendStop,
    /// The run is over.
    Over(Over),
}

/// The reason why the run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The outcome is known, and the output has arrived.
    Finished,
    /// The outcome is known, but some output never arrived.
    Incomplete,
    /// QEMU ended without an outcome.
    QemuEnded,
    /// The outer Linux did not come up.
    NotBooted,
    /// A stop was requested before the run had begun.
    StoppedEarly,
    /// The run did not end after a stop request.
    NotStopped,
    /// QEMU stands still.
    StoodStill,
    /// A port's contents are damaged.
    Violation,
}

/// The state machine above.
#[derive(Debug)]
pub(super) struct Progress {
    phase: Phase,
    since: Instant,
    timeout: Option<Duration>,
    dumped: u64,
    dump_began: Option<Instant>,
}

impl Progress {
    /// Begins at QEMU's start; `timeout` is the limit of the run inside.
    pub(super) fn begin(now: Instant, timeout: Option<Duration>) -> Self {
        Self {
            phase: Phase::Booting,
            since: now,
            timeout,
            dumped: 0,
            dump_began: None,
        }
    }

    /// Evaluates `facts`. The caller must check for QEMU's end first, so that the other facts include all output from before the end.
    pub(super) fn next(&mut self, now: Instant, facts: Facts) -> Verdict {
        if facts.violation {
            return Verdict::Over(Over::Violation);
        }
        if facts.dumped != self.dumped {
            self.dumped = facts.dumped;
            let began = *self.dump_began.get_or_insert(now);
            if now.saturating_duration_since(began) < DUMP_LIMIT {
                self.since = now;
            }
        }
        if facts.finished {
            if facts.complete {
                return Verdict::Over(Over::Finished);
            }
            self.enter(Phase::Draining, now);
            return match facts.ended || self.is_late(now, DRAIN_LIMIT) {
                true => Verdict::Over(Over::Incomplete),
                false => Verdict::Wait,
            };
        }
        if facts.ended {
            return Verdict::Over(Over::QemuEnded);
        }
        if facts.ending {
            self.enter(Phase::Draining, now);
            return match self.is_late(now, DRAIN_LIMIT) {
                true => Verdict::Over(Over::NotStopped),
                false => Verdict::Wait,
            };
        }
        if facts.still {
            return Verdict::Over(Over::StoodStill);
        }
        if facts.started && self.phase == Phase::Booting {
            self.enter(Phase::Running, now);
        }
        match self.phase {
            Phase::Booting if facts.stop => Verdict::Over(Over::StoppedEarly),
            Phase::Booting if self.is_late(now, BOOT_LIMIT) => Verdict::Over(Over::NotBooted),
            Phase::Running if facts.stop || self.is_beyond_timeout(now) => {
                self.enter(Phase::Stopping, now);
                Verdict::SendStop
            }
            Phase::Stopping if self.is_late(now, STOP_LIMIT) => Verdict::Over(Over::NotStopped),
            _ => Verdict::Wait,
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        if self.phase != phase {
            self.phase = phase;
            self.since = now;
        }
    }

    fn is_late(&self, now: Instant, limit: Duration) -> bool {
        now.saturating_duration_since(self.since) >= limit
    }

    fn is_beyond_timeout(&self, now: Instant) -> bool {
        self.timeout
            .is_some_and(|timeout| self.is_late(now, timeout.saturating_add(TIMEOUT_MARGIN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTED: Facts = Facts {
        started: true,
        ending: false,
        finished: false,
        complete: false,
        dumped: 0,
        violation: false,
        stop: false,
        ended: false,
        still: false,
    };

    fn begun(timeout: Option<Duration>) -> (Progress, Instant) {
        let now = Instant::now();
        (Progress::begin(now, timeout), now)
    }

    #[test]
    fn an_ordinary_run_waits_for_its_last_byte() {
        let (mut progress, now) = begun(None);
        assert_eq!(progress.next(now, Facts::default()), Verdict::Wait);
        assert_eq!(progress.next(now, STARTED), Verdict::Wait);
        assert_eq!(progress.phase, Phase::Running);
        let finished = Facts {
            finished: true,
            ..STARTED
        };
        assert_eq!(progress.next(now + BOOT_LIMIT * 9, finished), Verdict::Wait);
        let complete = Facts {
            complete: true,
            ended: true,
            ..finished
        };
        assert_eq!(progress.next(now, complete), Verdict::Over(Over::Finished));
    }

    #[test]
    fn output_that_never_arrives_is_not_waited_for_for_ever() {
        let (mut progress, now) = begun(None);
        let finished = Facts {
            finished: true,
            ..STARTED
        };
        assert_eq!(progress.next(now, finished), Verdict::Wait);
        let late = now + DRAIN_LIMIT;
        assert_eq!(
            progress.next(late, finished),
            Verdict::Over(Over::Incomplete)
        );
        let ended = Facts {
            ended: true,
            ..finished
        };
        assert_eq!(progress.next(now, ended), Verdict::Over(Over::Incomplete));
    }

    #[test]
    fn a_stop_is_sent_once_and_waited_for() {
        let (mut progress, now) = begun(None);
        let stop = Facts {
            stop: true,
            ..STARTED
        };
        assert_eq!(progress.next(now, stop), Verdict::SendStop);
        assert_eq!(progress.next(now, stop), Verdict::Wait);
        assert_eq!(
            progress.next(now + STOP_LIMIT, stop),
            Verdict::Over(Over::NotStopped)
        );
    }

    #[test]
    fn run_whose_guest_has_ended_may_write_for_long_but_not_for_ever() {
        let (mut progress, now) = begun(None);
        let stop = Facts {
            stop: true,
            ..STARTED
        };
        assert_eq!(progress.next(now, stop), Verdict::SendStop);
        let ending = Facts {
            ending: true,
            ..stop
        };
        assert_eq!(progress.next(now, ending), Verdict::Wait);
        assert_eq!(progress.next(now + STOP_LIMIT, ending), Verdict::Wait);
        let late = now + DRAIN_LIMIT;
        assert_eq!(progress.next(late, ending), Verdict::Over(Over::NotStopped));
    }

    #[test]
    fn dump_that_arrives_extends_the_limits() {
        let (mut progress, now) = begun(None);
        let stop = Facts {
            stop: true,
            ..STARTED
        };
        assert_eq!(progress.next(now, stop), Verdict::SendStop);
        let late = now + STOP_LIMIT;
        let dumping = Facts { dumped: 1, ..stop };
        assert_eq!(progress.next(late, dumping), Verdict::Wait);
        let later = late + STOP_LIMIT;
        assert_eq!(
            progress.next(later, dumping),
            Verdict::Over(Over::NotStopped)
        );
    }

    #[test]
    fn a_stop_during_the_boot_ends_it() {
        let (mut progress, now) = begun(None);
        let stop = Facts {
            stop: true,
            ..Facts::default()
        };
        assert_eq!(progress.next(now, stop), Verdict::Over(Over::StoppedEarly));
    }

    #[test]
    fn a_run_that_ignores_its_timeout_is_stopped() {
        let (mut progress, now) = begun(Some(Duration::from_secs(5)));
        assert_eq!(progress.next(now, STARTED), Verdict::Wait);
        let late = now + Duration::from_secs(5) + TIMEOUT_MARGIN;
        assert_eq!(progress.next(late, STARTED), Verdict::SendStop);
    }

    #[test]
    fn the_end_of_qemu_ends_every_phase_that_has_no_outcome() {
        for started in [false, true] {
            let (mut progress, now) = begun(None);
            let ended = Facts {
                started,
                ended: true,
                ..Facts::default()
            };
            assert_eq!(progress.next(now, ended), Verdict::Over(Over::QemuEnded));
        }
        let (mut progress, now) = begun(None);
        assert_eq!(
            progress.next(now + BOOT_LIMIT, Facts::default()),
            Verdict::Over(Over::NotBooted)
        );
    }

    #[test]
    fn qemu_that_stands_still_ends_each_phase_before_the_outcome() {
        let booting = Facts::default();
        let stopping = Facts {
            stop: true,
            ..STARTED
        };
        for before in [booting, STARTED, stopping] {
            let (mut progress, now) = begun(None);
            progress.next(now, before);
            let still = Facts {
                still: true,
                ..before
            };
            assert_eq!(progress.next(now, still), Verdict::Over(Over::StoodStill));
        }
    }

    #[test]
    fn output_is_awaited_from_a_qemu_that_stands_still_behind_the_end() {
        for (ending, finished) in [(true, false), (true, true)] {
            let (mut progress, now) = begun(None);
            let ended = Facts {
                ending,
                finished,
                still: true,
                ..STARTED
            };
            assert_eq!(progress.next(now, ended), Verdict::Wait);
        }
    }

    #[test]
    fn dump_that_never_ends_extends_the_limits_for_an_hour() {
        let (mut progress, now) = begun(None);
        let stop = Facts {
            stop: true,
            ..STARTED
        };
        assert_eq!(progress.next(now, stop), Verdict::SendStop);
        let (mut at, mut dumped) = (now, 0);
        let over = loop {
            at += STOP_LIMIT / 2;
            dumped += 1;
            match progress.next(at, Facts { dumped, ..stop }) {
                Verdict::Over(over) => break over,
                _ => assert!(at < now + DUMP_LIMIT * 2, "no limit"),
            }
        };
        assert_eq!(over, Over::NotStopped);
        assert!(at >= now + DUMP_LIMIT);
    }
}
