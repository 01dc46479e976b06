//! Expectations that contradict the program of a probe.
//!
//! An expectation selects hits by the names of probes: the expectation uses the requested probe. A probe with a filter is used as it is, if
//! only one meaning is possible.

use thiserror::Error;

use crate::{Expectation, ProbeAction, ProbeConfig, ProbeSpec};

/// Why an expectation and the program of a probe exclude each other. The message follows the name of the expectation's table.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramConflict {
    /// The expectation is also about executions that are no hits of the probe with the program.
    #[error("is about `{expected}`, which the probe `{probe}` with its program is not all of")]
    NotAll {
        /// The probe of the expectation.
        expected: ProbeSpec,
        /// The probe with the program.
        probe: ProbeSpec,
    },
    /// The expectation needs events.
    #[error("needs each hit of `{probe}`, and an aggregate keeps none")]
    Aggregate {
        /// The probe with the aggregate.
        probe: ProbeSpec,
    },
}

impl ProgramConflict {
    /// A solution.
    #[must_use]
    pub const fn help(&self) -> &'static str {
        match self {
            Self::NotAll { .. } => {
                "an expectation and a filter or an aggregate go together if both name the same place, which has no other \
                 probe"
            }
            Self::Aggregate { .. } => "write a filter in place of the aggregate",
        }
    }

    /// The specifications in the message.
    #[must_use]
    pub fn specs(&self) -> Vec<&ProbeSpec> {
        match self {
            Self::NotAll { expected, probe } if expected == probe => vec![probe],
            Self::NotAll { expected, probe } => vec![expected, probe],
            Self::Aggregate { probe } => vec![probe],
        }
    }
}

/// The requested probes, to be compared with expectations. The names are formatted once.
#[derive(Debug)]
pub struct RequestedProbes<'p> {
    probes: Vec<(&'p ProbeConfig, String)>,
}

impl<'p> RequestedProbes<'p> {
    /// The probes of a request. If none has a program, nothing is compared.
    #[must_use]
    pub fn new(probes: &'p [ProbeConfig]) -> Self {
        let named = |probe: &'p ProbeConfig| (probe, probe.at.to_string());
        let has_program = probes.iter().any(ProbeConfig::has_program);
        Self {
            probes: match has_program {
                true => probes.iter().map(named).collect(),
                false => Vec::new(),
            },
        }
    }

    /// The contradictions between `expectation` and the programs.
    #[must_use]
    pub fn conflicts(&self, expectation: &Expectation) -> Vec<ProgramConflict> {
        let probes = expectation.probes().into_iter();
        probes
            .filter_map(|(spec, action)| self.conflict(spec, action))
            .collect()
    }

    fn conflict(&self, spec: &ProbeSpec, action: ProbeAction) -> Option<ProgramConflict> {
        let wanted = spec.to_string();
        let overlaps = |probe: &&(&ProbeConfig, String)| {
            let (probe, name) = probe;
            probe.at.stands_for(&wanted) || spec.stands_for(name)
        };
        let there: Vec<_> = self.probes.iter().filter(overlaps).collect();
        let (with_program, _) = there.iter().find(|(probe, _)| probe.has_program())?;
        let at = &with_program.at;
        if there.len() > 1 || at != spec {
            return Some(ProgramConflict::NotAll {
                expected: spec.clone(),
                probe: at.clone(),
            });
        }
        let keeps_no_hit = with_program.action.aggregate().is_some();
        (keeps_no_hit && action == ProbeAction::Trace)
            .then(|| ProgramConflict::Aggregate { probe: at.clone() })
    }
}
