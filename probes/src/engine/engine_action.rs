//! The actions of probes in the engine: the configured ones, and code of the program that uses the engine.

use std::fmt;
use std::sync::Arc;

use manifest::{Action, Injection, ProbeConfig};

use crate::handler::{Handler, ReturnHandler};

/// The action at the hits of a probe to be registered.
#[derive(Clone)]
pub enum EngineAction {
    /// The action of a configuration.
    Configured(Action),
    /// A handler is called. For probes of kind `kprobe`.
    Handle(Arc<dyn Handler>),
    /// A handler is called at entry and return. For probes of kind `kretprobe`.
    HandleReturn(Arc<dyn ReturnHandler>),
    /// Some calls of a function return before it runs. For probes of kind `kprobe` at a function's entry.
    Inject(Injection),
}

impl Default for EngineAction {
    fn default() -> Self {
        Action::default().into()
    }
}

impl From<Action> for EngineAction {
    fn from(action: Action) -> Self {
        Self::Configured(action)
    }
}

impl fmt::Debug for EngineAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configured(action) => return action.fmt(f),
            Self::Handle(_) => "Handle",
            Self::HandleReturn(_) => "HandleReturn",
            Self::Inject(_) => "Inject",
        })
    }
}

/// The same probes, with the actions of the engine.
pub(crate) fn with_engine_actions<A: Clone + Into<EngineAction>>(
    probes: &[ProbeConfig<A>],
) -> Vec<ProbeConfig<EngineAction>> {
    let with_engine_action = |probe: &ProbeConfig<A>| {
        let action = probe.action.clone().into();
        probe.clone().with_action(action)
    };
    probes.iter().map(with_engine_action).collect()
}

/// The probe of a fault.
pub(crate) fn injecting(injection: &Injection) -> ProbeConfig<EngineAction> {
    ProbeConfig::from(injection.at.clone()).with_action(EngineAction::Inject(injection.clone()))
}
