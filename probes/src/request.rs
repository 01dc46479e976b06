//! A probe as the manifest and the command line ask for it.

use serde::{Deserialize, Serialize};

use crate::engine::{Action, NewProbe};
use crate::program::{Aggregate, Filter};
use crate::{ProbeAction, ProbeSpec};

/// Where, and what is done there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// Where.
    pub at: ProbeSpec,
    /// What is done at its hits, unless there is an aggregate.
    pub action: ProbeAction,
    /// Which executions are hits; all without.
    pub filter: Option<Filter>,
    /// What is kept of its hits' values.
    pub aggregate: Option<Aggregate>,
    /// For a return probe: how many calls are followed at once.
    pub maxactive: Option<usize>,
    /// Registered disabled, it has no plant until it is enabled.
    pub enabled: bool,
}

impl ProbeRequest {
    /// Whether more is done at its hits than telling or counting them.
    #[must_use]
    pub const fn has_program(&self) -> bool {
        self.filter.is_some() || self.aggregate.is_some()
    }
}

impl From<ProbeSpec> for ProbeRequest {
    fn from(at: ProbeSpec) -> Self {
        Self {
            at,
            action: ProbeAction::Trace,
            filter: None,
            aggregate: None,
            maxactive: None,
            enabled: true,
        }
    }
}

impl From<&ProbeRequest> for NewProbe {
    fn from(request: &ProbeRequest) -> Self {
        Self {
            spec: request.at.clone(),
            action: match (request.aggregate, request.action) {
                (Some(aggregate), _) => Action::Aggregate(aggregate),
                (None, ProbeAction::Trace) => Action::Trace,
                (None, ProbeAction::Count) => Action::Count,
            },
            filter: request.filter.clone(),
            maxactive: request.maxactive,
            enabled: request.enabled,
        }
    }
}
