//! `[[inject]]`.

use std::ops::Range;

use toml::de::DeTable;

use super::error::Problem;
use super::probe::function;
use super::reader::Reader;
use crate::{Due, Injection, Location, ProbeKind};

const KEYS: &[&str] = &["at", "return", "on_hit", "every", "when"];
const CONDITIONS: &[&str] = &["comm"];
/// The maximum length of a task's name in `struct task_struct`.
const MAX_COMM_BYTES: usize = 15;

/// Reads a table at `span` of `text`.
pub(super) fn inject(
    text: &str,
    table: &DeTable<'_>,
    span: Range<usize>,
    problems: &mut Vec<Problem>,
) -> Option<Injection> {
    let mut inject = Reader::new("[[inject]]", table, KEYS, problems);
    inject.require("at", span.clone());
    inject.require("return", span);
    inject.exclude("on_hit", "every");
    let due = match (number(&mut inject, "on_hit"), number(&mut inject, "every")) {
        (Some(hit), _) => Due::OnHit(hit),
        (None, every) => Due::Every(every.unwrap_or(1)),
    };
    let value = inject.integer("return");
    let at = function(&mut inject, text, "at")?;
    let is_entry = matches!(
        at.location,
        Location::Symbol { offset: 0, .. } | Location::Glob(_)
    );
    if at.kind != ProbeKind::Kprobe || !is_entry {
        let span = inject.value("at")?.span();
        inject.note(Problem::Meaning {
            table: "[[inject]]",
            what: "needs a function: it returns in the function's place".to_owned(),
            span: span.into(),
            help: Some("write its name alone".to_owned()),
        });
        return None;
    }
    let condition = inject.table("when");
    let comm = match condition {
        Some(condition) => {
            let mut when = Reader::new("`when`", condition, CONDITIONS, problems);
            Some(comm(&mut when)?)
        }
        None => None,
    };
    let (value, _) = value?;
    Some(Injection {
        at,
        due,
        value: value.cast_unsigned(),
        comm,
    })
}

fn comm(when: &mut Reader<'_, '_, '_>) -> Option<String> {
    let (name, span) = when.string("comm")?;
    if name.len() > MAX_COMM_BYTES {
        when.note(Problem::Meaning {
            table: "`when`",
            what: format!("names no task: names have {MAX_COMM_BYTES} bytes at most"),
            span: span.into(),
            help: Some(format!(
                "the kernel cuts longer ones: write \"{}\"",
                cut(name)
            )),
        });
        return None;
    }
    Some(name.to_owned())
}

fn cut(name: &str) -> &str {
    let end = (0..=MAX_COMM_BYTES)
        .rev()
        .find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// A number of 1 or more.
fn number(inject: &mut Reader<'_, '_, '_>, key: &'static str) -> Option<u64> {
    let number = inject.amount(key)?;
    if number == 0 {
        let span = inject.value(key)?.span();
        inject.note(Problem::OutOfRange {
            key,
            number: number.to_string(),
            from: 1,
            to: i64::MAX,
            span: span.into(),
        });
        return None;
    }
    Some(number)
}
