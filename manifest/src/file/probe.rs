//! `[[probe]]`, and probes in other tables.

use std::ops::Range;
use std::str::FromStr;

use toml::Spanned;
use toml::de::DeTable;

use super::error::Problem;
use super::reader::Reader;
use crate::program::{Aggregate, ProgramError};
use crate::{Action, ProbeAction, ProbeConfig, ProbeSpec};

const KEYS: &[&str] = &[
    "at",
    "action",
    "filter",
    "aggregate",
    "maxactive",
    "enabled",
    "stack",
];

/// The range of the maximum number of calls that one return probe follows at once.
const MAXACTIVE: std::ops::RangeInclusive<u16> = 1..=u16::MAX;

/// Reads a table at `span` of `text`.
pub(super) fn probe(
    text: &str,
    table: &DeTable<'_>,
    span: Range<usize>,
    problems: &mut Vec<Problem>,
) -> Option<ProbeConfig> {
    let mut probe = Reader::new("[[probe]]", table, KEYS, problems);
    probe.require("at", span);
    probe.exclude("action", "aggregate");
    let action: ProbeAction = probe.choice("action").unwrap_or_default();
    let filter = program(&mut probe, text, "filter");
    let aggregate: Option<Aggregate> = program(&mut probe, text, "aggregate");
    let maxactive = probe.number("maxactive", MAXACTIVE).map(usize::from);
    let enabled = probe.flag("enabled").unwrap_or(true);
    let stack = probe.flag("stack").unwrap_or(false);
    let at = spec(&mut probe, text, "at")?;
    if let Some(error) = aggregate.and_then(|aggregate| aggregate.fits(at.kind).err())
        && let Some(span) = probe.value("aggregate").map(Spanned::span)
    {
        probe.note(Problem::Meaning {
            table: "[[probe]]",
            what: format!("adds up what it does not see: {error}"),
            span: span.into(),
            help: Some(error.help()),
        });
    }
    let config = ProbeConfig {
        at,
        action: aggregate.map_or_else(|| action.into(), Action::Aggregate),
        filter,
        maxactive,
        enabled,
        stack,
        variables: Vec::new(),
    };
    if !config.stack_fits()
        && let Some(span) = probe.value("stack").map(Spanned::span)
    {
        probe.note(Problem::Meaning {
            table: "[[probe]]",
            what: "has no events that could show a stack".to_owned(),
            span: span.into(),
            help: Some("use `action = \"trace\"`, or leave `stack` out".to_owned()),
        });
    }
    Some(config)
}

/// The filter or the aggregate in `key`.
fn program<P: FromStr<Err = ProgramError>>(
    reader: &mut Reader<'_, '_, '_>,
    text: &str,
    key: &'static str,
) -> Option<P> {
    let (written, span) = reader.string(key)?;
    match written.parse() {
        Ok(program) => Some(program),
        Err(error) => {
            let span = within(text, &span, written, &error.span).into();
            let help = error.help();
            reader.note(Problem::Program {
                key,
                error,
                span,
                help,
            });
            None
        }
    }
}

/// The probe named by `key`.
pub(super) fn spec(
    reader: &mut Reader<'_, '_, '_>,
    text: &str,
    key: &'static str,
) -> Option<ProbeSpec> {
    let (written, span) = reader.string(key)?;
    parse_spec(reader, text, written, &span)
}

/// The function named by `key`; `kprobe:` may be left out.
pub(super) fn function(
    reader: &mut Reader<'_, '_, '_>,
    text: &str,
    key: &'static str,
) -> Option<ProbeSpec> {
    const KIND: &str = "kprobe:";
    let (written, span) = reader.string(key)?;
    if written.contains(':') {
        return parse_spec(reader, text, written, &span);
    }
    match format!("{KIND}{written}").parse::<ProbeSpec>() {
        Ok(at) => Some(at),
        Err(mut error) => {
            error.span = error.span.start.saturating_sub(KIND.len())
                ..error.span.end.saturating_sub(KIND.len());
            let span = within(text, &span, written, &error.span).into();
            let help = error.help();
            reader.note(Problem::Spec { error, span, help });
            None
        }
    }
}

/// Parses the probe `written` at `span` of `text`.
pub(super) fn parse_spec(
    reader: &mut Reader<'_, '_, '_>,
    text: &str,
    written: &str,
    span: &Range<usize>,
) -> Option<ProbeSpec> {
    match written.parse::<ProbeSpec>() {
        Ok(at) => Some(at),
        Err(error) => {
            let span = within(text, span, written, &error.span).into();
            let help = error.help();
            reader.note(Problem::Spec { error, span, help });
            None
        }
    }
}

/// The position of a part of a string in the text: the exact range, if the text has the string without escapes; otherwise the whole string.
fn within(text: &str, literal: &Range<usize>, string: &str, part: &Range<usize>) -> Range<usize> {
    let written = text.get(literal.clone()).unwrap_or_default();
    let quotes = written.len().saturating_sub(string.len()) / 2;
    if written.get(quotes..quotes + string.len()) == Some(string) {
        let start = literal.start + quotes;
        start + part.start..start + part.end
    } else {
        literal.clone()
    }
}
