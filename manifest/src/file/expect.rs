//! `[[expect]]`.

use std::ops::Range;

use regex::RegexBuilder;
use toml::de::{DeTable, DeValue};

use super::error::Problem;
use super::probe::{parse_spec, spec};
use super::reader::Reader;
use crate::units::parse_duration;
use crate::{
    Allowed, Count, Expectation, Expected, Location, Pattern, ProbeSpec, ValuePlace, WatchedData,
    Width,
};

const KEYS: &[&str] = &[
    "name",
    "console",
    "probe",
    "order",
    "end",
    "never",
    "at_least",
    "at_most",
    "exactly",
    "never_negative",
    "seen",
    "in",
    "only",
    "only_by",
    "before",
    "stop",
    "optional",
];
/// The subjects of expectations.
const SUBJECTS: [&str; 4] = ["console", "probe", "order", "end"];
/// The conditions on a probe.
const OF_A_PROBE: [&str; 8] = [
    "never",
    "at_least",
    "at_most",
    "exactly",
    "never_negative",
    "seen",
    "only",
    "only_by",
];
/// The most values or functions of an expectation.
const MAX_ALLOWED: usize = 256;
/// The most watched bytes that are a number.
const MAX_NUMBER_BYTES: u16 = 8;
/// The maximum size of a compiled pattern; no pattern for a console line needs more.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Reads a table at `span` of `text`.
pub(super) fn expect(
    text: &str,
    table: &DeTable<'_>,
    span: Range<usize>,
    problems: &mut Vec<Problem>,
) -> Option<Expectation> {
    let mut expect = Reader::new("[[expect]]", table, KEYS, problems);
    let name = expect.text("name");
    let before = expect.unit("before", "10s", parse_duration);
    let stop = expect.flag("stop").unwrap_or_default();
    let optional = expect.flag("optional").unwrap_or_default();
    let subjects: Vec<_> = SUBJECTS
        .into_iter()
        .filter(|key| expect.value(key).is_some())
        .collect();
    let what = match subjects[..] {
        ["console"] => console(&mut expect),
        ["probe"] => probe(&mut expect, text, span),
        ["order"] => order(&mut expect, text),
        ["end"] => {
            check_keys(&mut expect, "end", &[]);
            expect.choice("end").map(Expected::End)
        }
        [first, second, ..] => {
            expect.exclude(first, second);
            None
        }
        _ => {
            expect.note(Problem::Meaning {
                table: "[[expect]]",
                what: "says nothing".to_owned(),
                span: span.into(),
                help: Some("it needs one of `console`, `probe`, `order` and `end`".to_owned()),
            });
            None
        }
    };
    Some(Expectation {
        name,
        what: what?,
        before,
        stop,
        optional,
    })
}

fn console(expect: &mut Reader<'_, '_, '_>) -> Option<Expected> {
    check_keys(expect, "console", &["never"]);
    let never = expect.flag("never").unwrap_or_default();
    let (pattern, span) = expect.string("console")?;
    let compiled = RegexBuilder::new(pattern)
        .size_limit(MAX_PATTERN_BYTES)
        .build();
    match compiled {
        Ok(pattern) => Some(Expected::Console {
            pattern: Pattern(pattern),
            never,
        }),
        Err(error) => {
            // The last line of the error is the message; the lines before it show the pattern.
            let message = error.to_string();
            let message = message.lines().last().unwrap_or(&message).to_owned();
            expect.note(Problem::Regex {
                key: "console",
                message,
                span: span.into(),
            });
            None
        }
    }
}

fn order(expect: &mut Reader<'_, '_, '_>, text: &str) -> Option<Expected> {
    check_keys(expect, "order", &[]);
    let probes: Option<Vec<ProbeSpec>> = expect
        .strings("order")?
        .into_iter()
        .map(|(written, span)| parse_spec(expect, text, written, &span))
        .collect();
    let probes = probes?;
    if probes.len() < 2 {
        let span = expect.value("order")?.span();
        return meaningless(expect, "puts fewer than two probes in order", span, None);
    }
    Some(Expected::Order { probes })
}

fn probe(expect: &mut Reader<'_, '_, '_>, text: &str, span: Range<usize>) -> Option<Expected> {
    let said: Vec<_> = OF_A_PROBE
        .into_iter()
        .filter(|key| expect.value(key).is_some())
        .collect();
    let probe = spec(expect, text, "probe")?;
    let count = |count| Expected::Hits {
        probe: probe.clone(),
        count,
    };
    match said[..] {
        ["never"] => {
            check_keys(expect, "never", &["probe"]);
            match expect.flag("never")? {
                true => Some(count(Count::Exactly(0))),
                false => Some(count(Count::AtLeast(1))),
            }
        }
        ["at_least"] => {
            check_keys(expect, "at_least", &["probe"]);
            Some(count(Count::AtLeast(expect.amount("at_least")?)))
        }
        ["at_most"] => {
            check_keys(expect, "at_most", &["probe"]);
            Some(count(Count::AtMost(expect.amount("at_most")?)))
        }
        ["exactly"] => {
            check_keys(expect, "exactly", &["probe"]);
            Some(count(Count::Exactly(expect.amount("exactly")?)))
        }
        ["never_negative"] => never_negative(expect, probe),
        ["seen"] => seen(expect, probe),
        ["only"] => only(expect, probe),
        ["only_by"] => only_by(expect, probe),
        [first, second, ..] => {
            expect.exclude(first, second);
            None
        }
        _ => meaningless(
            expect,
            "does not say what is expected of the probe",
            span,
            Some(
                "add `never = true`, or `at_least`, `at_most`, `exactly`, `never_negative`, `seen`, `only`, `only_by`",
            ),
        ),
    }
}

fn never_negative(expect: &mut Reader<'_, '_, '_>, probe: ProbeSpec) -> Option<Expected> {
    check_keys(expect, "never_negative", &["probe"]);
    let (word, span) = expect.string("never_negative")?;
    let width = match word {
        "int" => Width::Int,
        "long" => Width::Long,
        _ => {
            return meaningless(
                expect,
                "does not say how wide the function's result is",
                span,
                Some("write \"int\" or \"long\", as its type in C"),
            );
        }
    };
    must_return(expect, &probe)?;
    Some(Expected::NeverNegative { probe, width })
}

fn seen(expect: &mut Reader<'_, '_, '_>, probe: ProbeSpec) -> Option<Expected> {
    check_keys(expect, "seen", &["probe", "in"]);
    let (value, _) = expect.integer("seen")?;
    let place = match (expect.string("in"), probe.kind.is_return()) {
        (None, true) => ValuePlace::Returned,
        (None, false) => ValuePlace::Argument(0),
        (Some(("return", _)), _) => {
            must_return(expect, &probe)?;
            ValuePlace::Returned
        }
        (Some((word, span)), _) => {
            let number = word.strip_prefix("arg").and_then(|n| n.parse().ok());
            let Some(number) = number.filter(|number| *number < 6) else {
                return meaningless(
                    expect,
                    "names no place for the value",
                    span,
                    Some("write \"return\", or \"arg0\" to \"arg5\""),
                );
            };
            if probe.kind.is_return() || !is_entry(&probe) {
                return meaningless(
                    expect,
                    "looks for an argument where there is none",
                    span,
                    Some("arguments are there at a function's entry: kprobe:NAME, syscall:NAME"),
                );
            }
            ValuePlace::Argument(number)
        }
    };
    Some(Expected::Seen {
        probe,
        value: value.cast_unsigned(),
        place,
    })
}

fn only(expect: &mut Reader<'_, '_, '_>, probe: ProbeSpec) -> Option<Expected> {
    check_keys(expect, "only", &["probe"]);
    let data = watched(expect, &probe)?;
    if data.bytes.is_some_and(|bytes| bytes > MAX_NUMBER_BYTES) {
        let span = expect.value("probe")?.span();
        return meaningless(
            expect,
            "is about a number, and more than 8 bytes are none",
            span,
            Some("watch 8 bytes or less"),
        );
    }
    let values = expect.integers("only")?;
    let number = values.len();
    accesses(expect, "only", probe, Allowed::Values(values), number)
}

fn only_by(expect: &mut Reader<'_, '_, '_>, probe: ProbeSpec) -> Option<Expected> {
    check_keys(expect, "only_by", &["probe"]);
    watched(expect, &probe)?;
    let names = expect.strings("only_by")?;
    let names: Vec<String> = names.iter().map(|(name, _)| (*name).to_owned()).collect();
    let number = match names.iter().any(String::is_empty) {
        true => 0,
        false => names.len(),
    };
    accesses(expect, "only_by", probe, Allowed::Functions(names), number)
}

fn accesses(
    expect: &mut Reader<'_, '_, '_>,
    key: &'static str,
    probe: ProbeSpec,
    allowed: Allowed,
    number: usize,
) -> Option<Expected> {
    if (1..=MAX_ALLOWED).contains(&number) {
        return Some(Expected::Accesses { probe, allowed });
    }
    let span = expect.value(key)?.span();
    let help = "write 1 to 256; for no access at all, write `never = true`";
    meaningless(expect, "allows no access, or too many", span, Some(help))
}

/// The data of a watchpoint.
fn watched<'p>(expect: &mut Reader<'_, '_, '_>, probe: &'p ProbeSpec) -> Option<&'p WatchedData> {
    if let Location::Data(data) = &probe.location {
        return Some(data);
    }
    let span = expect.value("probe")?.span();
    let help = "write watch:NAME, for the accesses to data";
    meaningless(expect, "is about data", span, Some(help))
}

fn is_entry(probe: &ProbeSpec) -> bool {
    let is_within = matches!(probe.location, Location::Symbol { offset, .. } if offset != 0);
    !is_within && !probe.location.needs_debug_info()
}

fn must_return(expect: &mut Reader<'_, '_, '_>, probe: &ProbeSpec) -> Option<()> {
    if probe.kind.is_return() {
        return Some(());
    }
    let span = expect.value("probe")?.span();
    let at = probe.kind.at_return().map(|kind| ProbeSpec {
        kind,
        ..probe.clone()
    });
    let help = at.map(|at| format!("write {at}"));
    meaningless(
        expect,
        "is about what a function returns",
        span,
        help.as_deref(),
    )
}

/// Notes keys without a meaning beside `subject`.
fn check_keys(expect: &mut Reader<'_, '_, '_>, subject: &'static str, with: &[&str]) {
    const ALWAYS: [&str; 4] = ["name", "before", "stop", "optional"];
    for key in KEYS {
        if *key == subject || ALWAYS.contains(key) || with.contains(key) {
            continue;
        }
        let Some(value) = expect.value(key) else {
            continue;
        };
        // `never = false` has no effect.
        if *key == "never" && matches!(value.get_ref(), DeValue::Boolean(false)) {
            continue;
        }
        let span = value.span();
        meaningless::<()>(
            expect,
            &format!("has no use for `{key}` beside `{subject}`"),
            span,
            None,
        );
    }
}

fn meaningless<T>(
    expect: &mut Reader<'_, '_, '_>,
    what: &str,
    span: Range<usize>,
    help: Option<&str>,
) -> Option<T> {
    let table = expect.name();
    expect.note(Problem::Meaning {
        table,
        what: what.to_owned(),
        span: span.into(),
        help: help.map(str::to_owned),
    });
    None
}
