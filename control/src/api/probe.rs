//! Probes: requested and registered.

use events::{ProbeStatus, ProbeSummary};
use manifest::{ProbeAction, ProbeVariable};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::Pause;
use crate::limits::{PROBES_PER_REQUEST, VARIABLES_PER_PROBE};

/// A probe to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddProbe {
    /// Probe specification, as for `-p` of the command line.
    #[schema(example = "kprobe:vfs_write", min_length = 1)]
    pub spec: String,
    /// Own name of the probe, to use instead of the number: letters, digits, `_`, `-` and `.`, at most 64 characters, not only digits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(
        pattern = "^[0-9]*[A-Za-z_.-][A-Za-z0-9_.-]*$",
        min_length = 1,
        max_length = 64
    )]
    pub name: Option<String>,
    /// Whether the probe is enabled. A disabled probe has no plant.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// For a return probe: maximum number of calls followed at the same time.
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "whole_number"
    )]
    #[schema(minimum = 1, maximum = 65_535)]
    pub maxactive: Option<u16>,
    /// Action at each hit; excludes `aggregate`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub action: Option<ProbeAction>,
    /// Filter: an execution is a hit only if the filter accepts the execution.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(example = "arg2 > 4096 && cpu == 1")]
    pub filter: Option<String>,
    /// Aggregate of the hits' values; excludes `action`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(example = "hist(arg2)")]
    pub aggregate: Option<String>,
    /// Whether events show the kernel's stack; requires the action `trace`.
    #[serde(default)]
    pub stack: bool,
    /// Variables that events show, at most 20; requires `kprobe:SYMBOL+OFFSET` and the action `trace`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    #[schema(max_items = 20)]
    pub variables: Vec<ProbeVariable>,
}

// A schema has literals only.
const _: () = assert!(VARIABLES_PER_PROBE == 20);

const fn yes() -> bool {
    true
}

/// Reads a number without a fraction: in JSON Schema, `7.0` is an integer, too.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let of_fraction = || {
        let fraction = number.as_f64().filter(|number| number.fract() == 0.0)?;
        format!("{fraction:.0}").parse().ok()
    };
    let whole = number.as_u64().or_else(of_fraction);
    let small = whole.and_then(|whole| u16::try_from(whole).ok());
    let wrong = || D::Error::custom(format!("`{number}` is no whole number up to {}", u16::MAX));
    small.map(Some).ok_or_else(wrong)
}

impl AddProbe {
    /// A probe at `spec`, enabled and traced.
    pub fn new(spec: impl Into<String>) -> Self {
        Self {
            spec: spec.into(),
            name: None,
            enabled: true,
            maxactive: None,
            action: None,
            filter: None,
            aggregate: None,
            stack: false,
            variables: Vec::new(),
        }
    }
}

/// A body that adds probes: all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AddProbes {
    /// One probe.
    One(AddProbe),
    /// An array of 1 to 1000 probes.
    Many(Vec<AddProbe>),
}

/// Not derived, because a derived schema has no limits for a variant.
impl PartialSchema for AddProbes {
    fn schema() -> RefOr<Schema> {
        let one = || Ref::from_schema_name("AddProbe");
        let many = ArrayBuilder::new()
            .items(one())
            .min_items(Some(1))
            .max_items(Some(PROBES_PER_REQUEST));
        OneOfBuilder::new()
            .item(one())
            .item(many)
            .description(Some("A body that adds probes: all of them or none."))
            .into()
    }
}

impl ToSchema for AddProbes {}

/// A page of the list of probes, in the order of registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Probes {
    /// The probes of the page.
    pub probes: Vec<ProbeStatus>,
    /// Total number of probes.
    pub total: u64,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<u64>,
}

/// Result of a request that adds probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Added {
    /// Number of the added probe, if the request added exactly one probe.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<u64>,
    /// Numbers of all added probes: a pattern may add many.
    pub ids: Vec<u64>,
    /// The added probes, at most the first 1000.
    pub probes: Vec<ProbeStatus>,
    /// Pause of the guest for the request.
    pub pause: Pause,
}

/// Changes to a probe. An absent property does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeProbe {
    /// The probe's own switch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub enabled: Option<bool>,
    /// Own name of the probe, with the same rules as for a new probe.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(
        pattern = "^[0-9]*[A-Za-z_.-][A-Za-z0-9_.-]*$",
        min_length = 1,
        max_length = 64
    )]
    pub name: Option<String>,
}

/// A probe, shown or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The probe in its present state; several records for a pattern in a module.
    pub probes: Vec<ProbeStatus>,
    /// Pause of the guest for the request.
    pub pause: Pause,
}

/// Result of a request that removes probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// Number of removed probes.
    pub removed: u64,
    /// The removed probes with their final counts, as just before the removal; at most the first 1000.
    pub probes: Vec<ProbeStatus>,
    /// Pause of the guest for the request.
    pub pause: Pause,
}

/// The counts of a probe at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Number of the probe.
    pub id: u64,
    /// Time of the counts: nanoseconds since the guest's first instruction.
    pub ts_ns: u64,
    /// The counts as in the summary of the run; several records for a pattern in a module.
    pub probes: Vec<ProbeSummary>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_alone_is_a_probe() {
        let probe: AddProbe = serde_json::from_str(r#"{"spec": "kprobe:a"}"#).expect("json");
        assert_eq!(probe, AddProbe::new("kprobe:a"));
        for (number, expected) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("7e0", Some(7)),
            ("7.5", None),
            ("-1.0", None),
            ("65536.0", None),
        ] {
            let text = format!(r#"{{"spec": "kprobe:a", "maxactive": {number}}}"#);
            let probe = serde_json::from_str::<AddProbe>(&text);
            let read = probe.ok().and_then(|probe| probe.maxactive);
            assert_eq!(read, expected, "{number}");
        }
        let wrong = serde_json::from_str::<AddProbe>(r#"{"spec": "kprobe:a", "enable": false}"#);
        let error = wrong.expect_err("unknown").to_string();
        assert!(error.contains("unknown field `enable`"), "{error}");
    }
}
