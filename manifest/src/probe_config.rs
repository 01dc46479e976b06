//! The configuration of a probe: the same type for the manifest, the command line and the control socket.

use serde::{Deserialize, Serialize};

use crate::program::{Aggregate, Filter};
use crate::{Location, ProbeAction, ProbeKind, ProbeSpec, ProbeVariable};

/// The site of a probe, and the action there.
///
/// The manifest, the command line and the control socket choose an [`Action`]. A program that uses the engine may choose handlers, too;
/// the engine has a type of its own, `A`, for these actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeConfig<A = Action> {
    /// The specification of the site.
    pub at: ProbeSpec,
    /// The action at hits.
    pub action: A,
    /// The filter of hits; without a filter, each execution is a hit. Of a return probe: the filter of followed calls.
    pub filter: Option<Filter>,
    /// For a return probe: the maximum number of calls followed at once. `None` is 256: kprobes' default, max(10, 2·vCPUs),
    /// is too small for functions that sleep.
    pub maxactive: Option<usize>,
    /// Whether the probe is enabled. A disabled probe has no plant.
    pub enabled: bool,
    /// Whether the events show the kernel's stack. Only events have a stack: see [`stack_fits`](ProbeConfig::stack_fits).
    pub stack: bool,
    /// The variables that events show: those of a source line, which the command has replaced by its places.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub variables: Vec<ProbeVariable>,
}

/// The action at the hits of a probe; of a return probe, at the returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Each hit is an event.
    #[default]
    Trace,
    /// Hits are counted.
    Count,
    /// A value of each hit is added to a result.
    Aggregate(Aggregate),
}

impl From<ProbeAction> for Action {
    fn from(action: ProbeAction) -> Self {
        match action {
            ProbeAction::Trace => Self::Trace,
            ProbeAction::Count => Self::Count,
        }
    }
}

impl Action {
    /// The aggregate, if the action is one.
    #[must_use]
    pub const fn aggregate(&self) -> Option<&Aggregate> {
        match self {
            Self::Trace | Self::Count => None,
            Self::Aggregate(aggregate) => Some(aggregate),
        }
    }
}

impl ProbeConfig {
    /// Whether the probe has a filter or an aggregate.
    #[must_use]
    pub const fn has_program(&self) -> bool {
        self.filter.is_some() || self.action.aggregate().is_some()
    }

    /// Whether the action makes the events that a stack belongs to.
    #[must_use]
    pub const fn stack_fits(&self) -> bool {
        !self.stack || matches!(self.action, Action::Trace)
    }

    /// Whether the probe has no variables, or is a probe whose events show them.
    #[must_use]
    pub fn variables_fit(&self) -> bool {
        self.variables.is_empty()
            || (self.at.kind == ProbeKind::Kprobe
                && matches!(
                    self.at.location,
                    Location::Symbol { .. } | Location::Address(_)
                )
                && self.action == Action::Trace)
    }
}

impl<A> ProbeConfig<A> {
    /// The same probe with another action.
    #[must_use]
    pub fn with_action<B>(self, action: B) -> ProbeConfig<B> {
        ProbeConfig {
            at: self.at,
            action,
            filter: self.filter,
            maxactive: self.maxactive,
            enabled: self.enabled,
            stack: self.stack,
            variables: self.variables,
        }
    }
}

impl From<ProbeSpec> for ProbeConfig {
    fn from(at: ProbeSpec) -> Self {
        Self {
            at,
            action: Action::default(),
            filter: None,
            maxactive: None,
            enabled: true,
            stack: false,
            variables: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_an_action_or_an_aggregate() {
        let hist: Aggregate = "hist(arg1)".parse().expect("an aggregate");
        for (action, json) in [
            (Action::Trace, r#""trace""#),
            (Action::Count, r#""count""#),
            (Action::Aggregate(hist), r#"{"aggregate":"hist(arg1)"}"#),
        ] {
            let config = ProbeConfig {
                action,
                filter: "arg0 == 5".parse().ok(),
                ..ProbeConfig::from("kprobe:f".parse::<ProbeSpec>().expect("a probe"))
            };
            let text = serde_json::to_string(&config).expect("json");
            assert!(text.contains(&format!(r#""action":{json}"#)), "{text}");
            let back: ProbeConfig = serde_json::from_str(&text).expect("a probe");
            assert_eq!(back, config);
        }
    }
}
