//! The tables and keys of a manifest, and their meaning.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::Problem;
use super::expect::expect;
use super::inject::inject;
use super::probe::probe;
use super::reader::Reader;
use super::{GuestSection, InitrdSource, KernelSource, Manifest, RunSection, limits, programs};
use crate::Location;
use crate::choices::Console;
use crate::units::{parse_duration, parse_size};

const TABLES: &[&str] = &["guest", "run", "probe", "expect", "inject"];
const GUEST_KEYS: &[&str] = &[
    "kernel", "image", "initrd", "workload", "modules", "cmdline", "memory", "cpus", "boot",
];
const RUN_KEYS: &[&str] = &[
    "accel",
    "format",
    "output",
    "console",
    "timeout",
    "control",
    "optimise",
    "when_full",
    "stealth",
];

/// The valid numbers of vCPUs: the APIC ids in the machine's tables have no room for more.
const CPUS: std::ops::RangeInclusive<u16> = 1..=254;

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
    let guest_table = root.table("guest");
    let run_table = root.table("run");
    let probe_tables = array(&mut root, "probe", "`at`");
    let expect_tables = array(&mut root, "expect", "what is expected");
    let inject_tables = array(&mut root, "inject", "`at` and `return`");
    let probe_tables = limits::at_most(
        limits::PROBES,
        "[[probe]] tables",
        probe_tables,
        &mut problems,
    );
    let expect_tables = limits::at_most(
        limits::EXPECTATIONS,
        "[[expect]] tables",
        expect_tables,
        &mut problems,
    );
    let inject_tables = limits::at_most(
        limits::INJECTIONS,
        "[[inject]] tables",
        inject_tables,
        &mut problems,
    );
    let expectations: Vec<_> = expect_tables
        .into_iter()
        .filter_map(|(table, span)| {
            expect(text, table, span.clone(), &mut problems).map(|it| (it, span))
        })
        .collect();
    let probes: Vec<_> = probe_tables
        .into_iter()
        .filter_map(|(table, span)| {
            probe(text, table, span.clone(), &mut problems).map(|it| (it, span))
        })
        .collect();
    let expected = expectations
        .iter()
        .flat_map(|(it, span)| it.probes().into_iter().map(move |_| span));
    limits::check(
        limits::EXPECTED_PROBES,
        "probes in [[expect]] tables",
        expected,
        &mut problems,
    );
    let patterns = probes
        .iter()
        .filter(|(probe, _)| matches!(probe.at.location, Location::Glob(_)))
        .map(|(_, span)| span);
    limits::check(
        limits::PATTERNS,
        "[[probe]] tables with patterns",
        patterns,
        &mut problems,
    );
    let probes: Vec<_> = probes.into_iter().map(|(probe, _)| probe).collect();
    // A refused manifest may have too many probes and expectations to compare.
    if problems.is_empty() {
        programs::check(&probes, &expectations, &mut problems);
    }
    let manifest = Manifest {
        guest: guest_table
            .map(|table| guest(table, folder, &mut problems))
            .unwrap_or_default(),
        run: run_table
            .map(|table| run(table, folder, &mut problems))
            .unwrap_or_default(),
        probes,
        expectations: expectations.into_iter().map(|(it, _)| it).collect(),
        injections: inject_tables
            .into_iter()
            .filter_map(|(table, span)| inject(text, table, span, &mut problems))
            .collect(),
    };
    if problems.is_empty() {
        Ok(manifest)
    } else {
        Err(problems)
    }
}

/// The tables of `[[key]]`, each with its position.
fn array<'t, 'i>(
    root: &mut Reader<'t, 'i, '_>,
    key: &'static str,
    below: &str,
) -> Vec<(&'t DeTable<'i>, Range<usize>)> {
    const EXPECTED: &str = "an array of tables";
    let help = || {
        Some(format!(
            "write [[{key}]] with {below} below it, once for each"
        ))
    };
    let Some(value) = root.value(key) else {
        return Vec::new();
    };
    let DeValue::Array(elements) = value.get_ref() else {
        return root
            .wrong_type(key, EXPECTED, help(), value)
            .unwrap_or_default();
    };
    let mut tables = Vec::new();
    for element in elements {
        match element.get_ref() {
            DeValue::Table(table) => tables.push((table, element.span())),
            _ => tables.extend(root.wrong_type(key, EXPECTED, help(), element)),
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
    guest.exclude("kernel", "modules");
    guest.exclude("initrd", "modules");
    let modules = guest.strings("modules").unwrap_or_default();
    GuestSection {
        kernel: kernel.or(image),
        initrd: initrd.or(workload),
        modules: modules
            .into_iter()
            .map(|(name, _)| name.to_owned())
            .collect(),
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
        optimise: run.flag("optimise"),
        when_full: run.choice("when_full"),
        stealth: run.choice("stealth"),
    }
}
