//! Which tables and keys there are, and what they mean.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::Problem;
use super::reader::Reader;
use super::{GuestSection, InitrdSource, KernelSource, Manifest, RunSection};
use crate::choices::Console;
use crate::units::{parse_duration, parse_size};
use crate::{ProbeRequest, ProbeSpec};

const TABLES: &[&str] = &["guest", "run", "probe"];
const GUEST_KEYS: &[&str] = &[
    "kernel", "image", "initrd", "workload", "cmdline", "memory", "cpus", "boot",
];
const RUN_KEYS: &[&str] = &["accel", "format", "output", "console", "timeout", "control"];
const PROBE_KEYS: &[&str] = &["at", "action", "maxactive", "enabled"];

/// What the APIC ids of the machine's tables have room for.
const CPUS: std::ops::RangeInclusive<u16> = 1..=254;
/// Calls that one return probe can follow at once.
const MAXACTIVE: std::ops::RangeInclusive<u16> = 1..=u16::MAX;

pub(super) fn read(text: &str, folder: &Path) -> Result<Manifest, Vec<Problem>> {
    let document = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        vec![Problem::Syntax {
            message: error.message().to_owned(),
            span: span.into(),
        }]
    })?;
    let mut problems = Vec::new();
    let mut root = Reader::new("the manifest", document.get_ref(), TABLES, &mut problems);
    let guest_table = table(&mut root, "guest");
    let run_table = table(&mut root, "run");
    let probe_tables = array(&mut root);
    let manifest = Manifest {
        guest: guest_table
            .map(|table| guest(table, folder, &mut problems))
            .unwrap_or_default(),
        run: run_table
            .map(|table| run(table, folder, &mut problems))
            .unwrap_or_default(),
        probes: probe_tables
            .into_iter()
            .filter_map(|(table, span)| probe(text, table, span, &mut problems))
            .collect(),
    };
    if problems.is_empty() {
        Ok(manifest)
    } else {
        Err(problems)
    }
}

fn table<'t, 'i>(root: &mut Reader<'t, 'i, '_>, key: &'static str) -> Option<&'t DeTable<'i>> {
    let value = root.value(key)?;
    match value.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => root.wrong_type(key, "a table", Some(format!("write [{key}]")), value),
    }
}

/// The tables of `[[probe]]`, each with its place.
fn array<'t, 'i>(root: &mut Reader<'t, 'i, '_>) -> Vec<(&'t DeTable<'i>, Range<usize>)> {
    const KEY: &str = "probe";
    const EXPECTED: &str = "an array of tables";
    let help = || Some("write [[probe]] with `at` below it, once for each probe".to_owned());
    let Some(value) = root.value(KEY) else {
        return Vec::new();
    };
    let DeValue::Array(elements) = value.get_ref() else {
        return root
            .wrong_type(KEY, EXPECTED, help(), value)
            .unwrap_or_default();
    };
    let mut tables = Vec::new();
    for element in elements {
        match element.get_ref() {
            DeValue::Table(table) => tables.push((table, element.span())),
            _ => tables.extend(root.wrong_type(KEY, EXPECTED, help(), element)),
        }
    }
    tables
}

fn guest(table: &DeTable<'_>, folder: &Path, problems: &mut Vec<Problem>) -> GuestSection {
    let mut guest = Reader::new("[guest]", table, GUEST_KEYS, problems);
    guest.exclude("kernel", "image");
    guest.exclude("initrd", "workload");
    let kernel = guest
        .string("kernel")
        .map(|(file, _)| KernelSource::File(folder.join(file)));
    let image = guest
        .string("image")
        .map(|(name, _)| KernelSource::Image(name.to_owned()));
    let initrd = guest
        .string("initrd")
        .map(|(file, _)| InitrdSource::File(folder.join(file)));
    let workload = guest.choice("workload").map(InitrdSource::Workload);
    GuestSection {
        kernel: kernel.or(image),
        initrd: initrd.or(workload),
        cmdline: guest.text("cmdline"),
        memory_bytes: guest.unit("memory", "256M", parse_size),
        cpus: guest
            .number("cpus", CPUS)
            .and_then(|cpus| u8::try_from(cpus).ok()),
        boot: guest.choice("boot"),
    }
}

fn run(table: &DeTable<'_>, folder: &Path, problems: &mut Vec<Problem>) -> RunSection {
    let mut run = Reader::new("[run]", table, RUN_KEYS, problems);
    RunSection {
        accel: run.choice("accel"),
        format: run.choice("format"),
        output: run.string("output").map(|(file, _)| folder.join(file)),
        console: run
            .string("console")
            .map(|(text, _)| Console::from_text(text, folder)),
        timeout: run.unit("timeout", "60s", parse_duration),
        control: run.string("control").map(|(file, _)| folder.join(file)),
    }
}

fn probe(
    text: &str,
    table: &DeTable<'_>,
    span: Range<usize>,
    problems: &mut Vec<Problem>,
) -> Option<ProbeRequest> {
    let mut probe = Reader::new("[[probe]]", table, PROBE_KEYS, problems);
    probe.require("at", span);
    let action = probe.choice("action").unwrap_or_default();
    let maxactive = probe.number("maxactive", MAXACTIVE).map(usize::from);
    let enabled = probe.flag("enabled").unwrap_or(true);
    let (spec, span) = probe.string("at")?;
    match spec.parse::<ProbeSpec>() {
        Ok(at) => Some(ProbeRequest {
            at,
            action,
            maxactive,
            enabled,
        }),
        Err(error) => {
            let span = within(text, &span, spec, &error.span).into();
            let help = error.help();
            probe.note(Problem::Spec { error, span, help });
            None
        }
    }
}

/// Where a part of a string is in the text: exactly, if the string is written as it is; else all of it.
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
