//! Probes to be registered.

use std::fmt;
use std::sync::Arc;

use manifest::program::{Aggregate, Filter};
use manifest::{Injection, ProbeConfig, ProbeSpec};

use crate::handler::{Handler, ReturnHandler};

/// The action at the hits of a new probe.
#[derive(Clone, Default)]
pub enum Action {
    /// Hits are reported as events; of a return probe, the returns.
    #[default]
    Trace,
    /// Hits are counted.
    Count,
    /// A value of each hit is added to a result; of a return probe, at the returns.
    Aggregate(Aggregate),
    /// A handler is called. For probes of kind `kprobe`.
    Handle(Arc<dyn Handler>),
    /// A handler is called at entry and return. For probes of kind `kretprobe`.
    HandleReturn(Arc<dyn ReturnHandler>),
    /// Some calls of a function return before it runs. For probes of kind `kprobe` at a function's entry.
    Inject(Injection),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trace => "Trace",
            Self::Count => "Count",
            Self::Aggregate(_) => "Aggregate",
            Self::Handle(_) => "Handle",
            Self::HandleReturn(_) => "HandleReturn",
            Self::Inject(_) => "Inject",
        })
    }
}

/// A probe to be registered.
#[derive(Clone, Debug)]
pub struct NewProbe {
    /// The kind and the location of the probe.
    pub spec: ProbeSpec,
    /// The action at hits.
    pub action: Action,
    /// The filter of hits; without a filter, each execution is a hit. Of a return probe: the filter of followed calls.
    pub filter: Option<Filter>,
    /// For a return probe: the maximum number of calls followed at once. `None` is 256: kprobes' default, max(10, 2·vCPUs),
    /// is too small for functions that sleep.
    pub maxactive: Option<usize>,
    /// Whether the probe is enabled. A disabled probe has no plant.
    pub enabled: bool,
}

impl From<ProbeSpec> for NewProbe {
    fn from(spec: ProbeSpec) -> Self {
        Self {
            spec,
            action: Action::Trace,
            filter: None,
            maxactive: None,
            enabled: true,
        }
    }
}

impl From<&ProbeConfig> for NewProbe {
    fn from(config: &ProbeConfig) -> Self {
        Self {
            spec: config.at.clone(),
            action: match config.action {
                manifest::Action::Trace => Action::Trace,
                manifest::Action::Count => Action::Count,
                manifest::Action::Aggregate(aggregate) => Action::Aggregate(aggregate),
            },
            filter: config.filter.clone(),
            maxactive: config.maxactive,
            enabled: config.enabled,
        }
    }
}

impl From<&Injection> for NewProbe {
    fn from(injection: &Injection) -> Self {
        Self {
            action: Action::Inject(injection.clone()),
            ..Self::from(injection.at.clone())
        }
    }
}
