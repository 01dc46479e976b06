//! The status of a registered probe: its configuration, its state and its counters. The same type for the engine and the control socket.

use std::sync::Arc;

use manifest::{ProbeAction, ProbeKind};
use serde::{Deserialize, Serialize};

use crate::{ProbeId, ProbeSummary};

// The description of the control socket calls the type `Probe`.
/// A registered probe.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Probe))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Number of the probe, never reused in the run. The matches of a pattern in a module share one number.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub id: ProbeId,
    // The engine knows no names: the control server gives them.
    /// Own name of the probe, if the probe has a name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Kind of the probe.
    pub kind: ProbeKind,
    /// The probed instruction as `symbol+0xoffset`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub symbol: Option<Arc<str>>,
    /// Module of the probed instruction.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub module: Option<String>,
    /// The probe's own switch.
    pub enabled: bool,
    /// Action at each hit; absent for an aggregate and for a program's own handler.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub action: Option<ProbeAction>,
    /// Aggregate of the hits' values.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub aggregate: Option<String>,
    /// For a return probe: maximum number of calls followed at the same time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub maxactive: Option<u64>,
    /// As in the summary of the run.
    #[serde(flatten)]
    pub summary: ProbeSummary,
}
