//! The conversion of the JSON of a probe to its configuration. No other code makes a configuration from JSON.

use std::str::FromStr;

use manifest::program::{Aggregate, Filter, ProgramError};
use manifest::{Action, Location, ProbeConfig, ProbeSpec, ProbeVariable, SpecError};

use super::names::shortened;
use crate::api::{AddProbe, Problem, ProblemKind};
use crate::limits::{VARIABLE_BYTES, VARIABLES_PER_PROBE};

/// Parses and checks a probe. `pointer` is the JSON pointer to the probe in the body.
pub(super) fn config(wanted: &AddProbe, pointer: &str) -> Result<ProbeConfig, Problem> {
    let at: ProbeSpec = wanted.spec.parse().map_err(|error: SpecError| {
        ProblemKind::NotAProbe
            .with(format!(
                "`{}` is not a probe: {error}",
                shortened(&wanted.spec)
            ))
            .help(error.help())
            .at(format!("{pointer}/spec"))
    })?;
    if wanted.maxactive == Some(0) {
        return Err(ProblemKind::Malformed
            .with(format!("`maxactive` is a number from 1 to {}", u16::MAX))
            .at(format!("{pointer}/maxactive")));
    }
    if wanted.name.is_some() && stands_for_many(&at) {
        return Err(ProblemKind::Contradictory
            .with(format!(
                "a name is for one probe, and `{at}` stands for many"
            ))
            .at(format!("{pointer}/name")));
    }
    let filter: Option<Filter> = program(wanted.filter.as_deref(), "filter", pointer)?;
    let aggregate: Option<Aggregate> = program(wanted.aggregate.as_deref(), "aggregate", pointer)?;
    let action = match (aggregate, wanted.action) {
        (Some(_), Some(_)) => {
            return Err(ProblemKind::Contradictory
                .with("`action` and `aggregate` exclude each other")
                .at(format!("{pointer}/aggregate")));
        }
        (Some(aggregate), None) => {
            aggregate.fits(at.kind).map_err(|error| {
                ProblemKind::CannotProbe
                    .with(format!("cannot probe `{at}`: {error}"))
                    .help(Some(error.help()))
                    .at(format!("{pointer}/aggregate"))
            })?;
            Action::Aggregate(aggregate)
        }
        (None, action) => action.unwrap_or_default().into(),
    };
    let config = ProbeConfig {
        at,
        action,
        filter,
        maxactive: wanted.maxactive.map(usize::from),
        enabled: wanted.enabled,
        stack: wanted.stack,
        variables: wanted.variables.clone(),
    };
    if config.variables.len() > VARIABLES_PER_PROBE {
        return Err(ProblemKind::Malformed
            .with(format!(
                "a probe has at most {VARIABLES_PER_PROBE} variables"
            ))
            .at(format!("{pointer}/variables")));
    }
    let is_long = |variable: &ProbeVariable| {
        variable.name.len() > VARIABLE_BYTES || variable.declared.len() > VARIABLE_BYTES
    };
    if config.variables.iter().any(is_long) {
        return Err(ProblemKind::Malformed
            .with(format!(
                "the name and the type of a variable have at most {VARIABLE_BYTES} bytes"
            ))
            .at(format!("{pointer}/variables")));
    }
    if !config.variables_fit() {
        return Err(ProblemKind::Contradictory
            .with("`variables` are for the events of a probe at an instruction of the kernel")
            .help(Some(
                "use `kprobe:SYMBOL+OFFSET` and the action `trace`, or leave `variables` out"
                    .to_owned(),
            ))
            .at(format!("{pointer}/variables")));
    }
    if !config.stack_fits() {
        return Err(ProblemKind::Contradictory
            .with("`stack` is for events, and the probe has none")
            .help(Some(
                "use the action `trace`, or leave `stack` out".to_owned(),
            ))
            .at(format!("{pointer}/stack")));
    }
    Ok(config)
}

/// Parses the filter or the aggregate under `key`.
fn program<P: FromStr<Err = ProgramError>>(
    text: Option<&str>,
    key: &str,
    pointer: &str,
) -> Result<Option<P>, Problem> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|error: ProgramError| {
        let (text, span) = (text.unwrap_or_default(), error.span.clone());
        let where_ = match text.get(span.clone()) {
            Some(spot) if !spot.is_empty() => format!(" at byte {}", span.start),
            _ => String::new(),
        };
        ProblemKind::NotAProgram
            .with(format!(
                "`{}` is no {key}: {error}{where_}",
                shortened(text)
            ))
            .help(error.help())
            .at(format!("{pointer}/{key}"))
    })
}

/// Whether each match becomes a separate probe: a pattern without a module.
pub(super) fn stands_for_many(spec: &ProbeSpec) -> bool {
    spec.module.is_none() && matches!(spec.location, Location::Glob(_))
}
