//! A probe as requested by the manifest or the command line.

use serde::{Deserialize, Serialize};

use crate::program::{Aggregate, Filter};
use crate::{ProbeAction, ProbeSpec};

/// The site of a probe, and the action there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// The specification of the site.
    pub at: ProbeSpec,
    /// The action at hits, unless the probe has an aggregate.
    pub action: ProbeAction,
    /// The filter of hits; without a filter, all executions are hits.
    pub filter: Option<Filter>,
    /// The aggregate of the hits' values.
    pub aggregate: Option<Aggregate>,
    /// For a return probe: the maximum number of calls followed at once.
    pub maxactive: Option<usize>,
    /// Whether the probe is enabled. A disabled probe has no plant.
    pub enabled: bool,
}

impl ProbeRequest {
    /// Whether the probe has a filter or an aggregate.
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
