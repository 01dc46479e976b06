//! Switches for all probes at once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Pause;

/// The present knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Knobs {
    /// Whether enabled probes are planted.
    pub enabled: bool,
    /// Whether jumps replace plants where possible, so that hits cause no VM exit.
    pub optimization: bool,
    /// Pause of the guest for the request; zero if the request only shows the knobs.
    pub pause: Pause,
}

/// Knobs to set. An absent knob does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetKnobs {
    /// `false` removes the plants of all probes and keeps each probe's own switch; `true` restores the plants.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub enabled: Option<bool>,
    /// If `false`, every hit causes a VM exit. If `true`, jumps replace plants where possible.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub optimization: Option<bool>,
}
