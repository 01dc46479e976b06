//! A probe as the manifest and the command line ask for it.

use serde::{Deserialize, Serialize};

use crate::engine::{Action, NewProbe};
use crate::{ProbeAction, ProbeSpec};

/// Where, and what is done there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// Where.
    pub at: ProbeSpec,
    /// What is done at its hits.
    pub action: ProbeAction,
    /// For a return probe: how many calls are followed at once.
    pub maxactive: Option<usize>,
    /// Registered disabled, it has no plant until it is enabled.
    pub enabled: bool,
}

impl From<ProbeSpec> for ProbeRequest {
    fn from(at: ProbeSpec) -> Self {
        Self {
            at,
            action: ProbeAction::Trace,
            maxactive: None,
            enabled: true,
        }
    }
}

impl From<&ProbeRequest> for NewProbe {
    fn from(request: &ProbeRequest) -> Self {
        Self {
            spec: request.at.clone(),
            action: match request.action {
                ProbeAction::Trace => Action::Trace,
                ProbeAction::Count => Action::Count,
            },
            maxactive: request.maxactive,
            enabled: request.enabled,
        }
    }
}
