//! Why plants could not be changed.

/// The probes could not be armed; probes armed before still are.
#[derive(Debug, thiserror::Error)]
#[error("cannot arm the probes")]
pub struct ArmError(#[source] pub(crate) Box<dyn std::error::Error + Send + Sync>);
