//! Switches for all probes at once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Pause;

/// The knobs as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Knobs {
    /// Whether probes are planted at all.
    pub enabled: bool,
    /// Whether jumps stand for plants where they can, so that hits need no exit.
    pub optimization: bool,
    /// What the last change cost the guest; zero when nothing was changed.
    pub pause: Pause,
}

/// What is to be changed; what is left out stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetKnobs {
    /// `false` takes every plant away and leaves each probe's own switch as it is, `true` brings them back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub enabled: Option<bool>,
    /// `false` makes every hit exit, `true` lets jumps stand for plants where they can.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub optimization: Option<bool>,
}
