//! The way and the time of a boot's end.

use std::time::Duration;

use super::verdict::EndRequest;
use crate::busy::random::Random;

/// The least time between the rig's request to end a run and the run's timeout.
const END_TIME: Duration = Duration::from_secs(5);

/// How the rig ends a run, if the guest does not; times are from the guest's first line on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// By `--timeout` only.
    Wait,
    /// By the control socket.
    Stop(Duration),
    /// By SIGTERM.
    Signal(Duration),
}

impl Plan {
    /// Half of the guests have all of the time.
    pub(super) fn new(random: &mut Random, longest: Duration) -> Self {
        let after = longest * u32::try_from(random.below(100)).unwrap_or(0) / 100;
        match random.below(8) {
            0 | 1 => Self::Stop(after),
            2 => Self::Signal(after),
            3 => Self::Wait,
            _ => Self::Stop(longest),
        }
    }

    /// The request that the rig makes in good time before `timeout`.
    pub(super) fn end_request(self, timeout: Duration) -> EndRequest {
        let in_time = |after: Duration| after + END_TIME < timeout;
        match self {
            Self::Stop(after) if in_time(after) => EndRequest::Stop,
            Self::Signal(after) if in_time(after) => EndRequest::Signal,
            Self::Wait | Self::Stop(_) | Self::Signal(_) => EndRequest::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_that_is_asked_shortly_before_its_timeout_may_end_by_it() {
        let seconds = Duration::from_secs;
        for (plan, expected) in [
            (Plan::Wait, EndRequest::Nothing),
            (Plan::Stop(seconds(9)), EndRequest::Stop),
            (Plan::Stop(seconds(10)), EndRequest::Nothing),
            (Plan::Signal(seconds(0)), EndRequest::Signal),
        ] {
            assert_eq!(plan.end_request(seconds(15)), expected, "{plan:?}");
        }
    }
}
