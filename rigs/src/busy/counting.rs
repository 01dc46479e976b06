//! Probes that only count, and the guest's counts of the same calls.

use events::{ProbeState, ProbeSummary};
use introspect::Symbol;
use manifest::{Action, ProbeConfig, ProbeSpec};
use probes::Kernel;

use super::guest::Ran;
use errors::chain;

/// The calls that the guest counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    Openat,
    Read,
    Getpid,
    Nap,
    Children,
}

impl Counted {
    pub(super) fn of(self, ran: &Ran) -> u64 {
        match self {
            Self::Openat => ran.counts.openat,
            Self::Read => ran.counts.read,
            Self::Getpid => ran.counts.getpid,
            Self::Nap => ran.counts.nap,
            Self::Children => ran.counts.children,
        }
    }
}

/// A message if a permanent probe has not counted exactly the guest's calls.
pub(super) fn lost(probe: &ProbeSummary, made: u64) -> Option<String> {
    let counts = probe.state == ProbeState::Armed && made > 0 && probe.hits == made;
    (!counts || !is_accounted(probe)).then(|| format!("{made} expected: {probe:?}"))
}

pub(crate) fn is_accounted(probe: &ProbeSummary) -> bool {
    let missed: u64 = probe.missed.values().sum();
    match (probe.returns, probe.in_flight) {
        (Some(returns), Some(in_flight)) => probe.hits == returns + in_flight + missed,
        _ => missed == 0,
    }
}

pub(super) fn only_counts(spec: &str) -> Result<ProbeConfig, String> {
    Ok(ProbeConfig {
        action: Action::Count,
        ..ProbeConfig::from(spec.parse::<ProbeSpec>().map_err(chain)?)
    })
}

pub(crate) fn function(kernel: &Kernel, name: &str) -> Result<Symbol, String> {
    kernel
        .symbols()
        .lookup(name)
        .ok_or_else(|| format!("this kernel has no {name}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn counted(hits: u64, returns: Option<u64>) -> ProbeSummary {
        ProbeSummary {
            probe: "kprobe:f".to_owned(),
            ip: None,
            hits,
            missed: [("abandoned".to_owned(), 2)]
                .into_iter()
                .filter(|_| returns.is_some())
                .collect(),
            tier: None,
            exits: hits,
            returns,
            in_flight: returns.map(|_| 1),
            state: ProbeState::Armed,
            reason: None,
            unoptimised: None,
            filter: None,
            result: None,
        }
    }

    #[test]
    fn one_hit_too_few_or_too_many_is_reported() {
        for (probe, is_good) in [
            (counted(10, None), true),
            (counted(9, None), false),
            (counted(11, None), false),
            (counted(10, Some(7)), true),
            (counted(10, Some(8)), false),
            (counted(10, Some(6)), false),
        ] {
            assert_eq!(lost(&probe, 10).is_none(), is_good, "{probe:?}");
        }
        // If the guest made no calls, equal counts show nothing.
        assert!(lost(&counted(0, None), 0).is_some());
        let gone = ProbeSummary {
            state: ProbeState::Gone,
            ..counted(10, None)
        };
        assert!(lost(&gone, 10).is_some());
    }
}
