//! Probes: as they are asked for, and as they are.

use probes::{ProbeAction, ProbeKind, ProbeRecord, ProbeSummary};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::Pause;
use crate::limits::PROBES_PER_REQUEST;

/// A probe to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddProbe {
    /// Where, as `-p` of the command line has it.
    #[schema(example = "kprobe:vfs_write", min_length = 1)]
    pub spec: String,
    /// A name of its own, which can be used in place of its number: letters, digits, `_`, `-` and `.`, at most 64,
    /// not all of them digits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(
        pattern = "^[0-9]*[A-Za-z_.-][A-Za-z0-9_.-]*$",
        min_length = 1,
        max_length = 64
    )]
    pub name: Option<String>,
    /// Added disabled, it has no plant until it is enabled.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// For a return probe: how many calls are followed at once.
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "whole_number"
    )]
    #[schema(minimum = 1, maximum = 65_535)]
    pub maxactive: Option<u16>,
    /// What is done at its hits, unless there is an aggregate.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub action: Option<ProbeAction>,
    /// Only executions for which this holds are hits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(example = "arg2 > 4096 && cpu == 1")]
    pub filter: Option<String>,
    /// What is kept of its hits' values; in place of an action.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(example = "hist(arg2)")]
    pub aggregate: Option<String>,
}

const fn yes() -> bool {
    true
}

/// To JSON Schema, `7.0` is an integer, too.
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
        }
    }
}

/// A body that adds probes: all of them or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AddProbes {
    /// One.
    One(AddProbe),
    /// At least one and at most 1000.
    Many(Vec<AddProbe>),
}

/// Not derived, because a derived schema has no limits of a variant.
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

/// What kind of probe it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Before an instruction.
    Kprobe,
    /// At a function's return.
    Kretprobe,
}

impl From<ProbeKind> for Kind {
    fn from(kind: ProbeKind) -> Self {
        match kind {
            ProbeKind::Kprobe => Self::Kprobe,
            ProbeKind::Kretprobe => Self::Kretprobe,
        }
    }
}

/// A probe as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Probe {
    /// Its number; no other probe of the run ever has it. The matches of a pattern in a module share one.
    pub id: u64,
    /// Its own name, if it was given one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// What kind of probe it is.
    pub kind: Kind,
    /// The probed instruction as `symbol+0xoffset`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub symbol: Option<String>,
    /// The module that it is in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub module: Option<String>,
    /// Its own switch.
    pub enabled: bool,
    /// What is done at its hits; absent for an aggregate and for a program's own handler.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub action: Option<ProbeAction>,
    /// What is kept of its hits' values.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub aggregate: Option<String>,
    /// For a return probe: how many calls are followed at once.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub maxactive: Option<u64>,
    /// As in the summary of the run.
    #[serde(flatten)]
    pub summary: ProbeSummary,
}

impl Probe {
    /// What the engine knows, and the name that it does not.
    #[must_use]
    pub fn new(record: ProbeRecord, name: Option<String>) -> Self {
        Self {
            id: record.id.into(),
            name,
            kind: record.kind.into(),
            symbol: record.symbol.map(|symbol| symbol.to_string()),
            module: record.module,
            enabled: record.enabled,
            action: record.action,
            aggregate: record.aggregate.map(|aggregate| aggregate.to_string()),
            maxactive: record.maxactive.map(|most| most as u64),
            summary: record.summary,
        }
    }
}

/// Probes, in the order in which they were added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Probes {
    /// These.
    pub probes: Vec<Probe>,
    /// How many there are altogether.
    pub total: u64,
    /// There are more: ask with `after` of this.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<u64>,
}

/// Probes have been added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Added {
    /// The probe's number, if it is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<u64>,
    /// All of them: a pattern stands for many.
    pub ids: Vec<u64>,
    /// As they are now; the first thousand.
    pub probes: Vec<Probe>,
    /// What it cost the guest.
    pub pause: Pause,
}

/// What is to be changed about a probe; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeProbe {
    /// Its switch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub enabled: Option<bool>,
    /// Its name, as for a new probe.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(
        pattern = "^[0-9]*[A-Za-z_.-][A-Za-z0-9_.-]*$",
        min_length = 1,
        max_length = 64
    )]
    pub name: Option<String>,
}

/// A probe has been changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// As it is now; several for a pattern in a module.
    pub probes: Vec<Probe>,
    /// What it cost the guest.
    pub pause: Pause,
}

/// Probes have been removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// How many.
    pub removed: u64,
    /// As they were when they had just been removed, with their last counts; the first thousand.
    pub probes: Vec<Probe>,
    /// What it cost the guest.
    pub pause: Pause,
}

/// The counts of a probe at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Its number.
    pub id: u64,
    /// When: nanoseconds since the guest's first instruction.
    pub ts_ns: u64,
    /// As in the summary of the run; several for a pattern in a module.
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
