//! The overhead table, as Markdown, from the results of the last run of `bench` on each kind of KVM.

mod tables;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::stock::ROWS;
use super::words::{ARMING, BOOTS, GDBSTUB, HITS, INTRODUCTION, RATES, READING, RECORDS, STOCK};
use super::{SPEED, WAYS, Way};
use crate::launch::LaunchError;
use crate::line::{Arming, Backend, Boot, BootKind, Line, Timing};
use tables::{armings, boots, gdbstub, hits, in_stock, rates, records};
use targets::targets;

/// Where the table is kept, from the repository's top.
pub const PAGE: &str = "docs/overhead.md";
/// The way whose time divides the times of the others.
const FLOOR: &str = "floor";

/// The results of the last run on a kind of KVM.
#[derive(Debug, Default)]
struct Measured {
    date: String,
    /// The machine first.
    about: Vec<String>,
    timings: BTreeMap<(String, u8), Timing>,
    armings: BTreeMap<usize, Arming>,
    boots: BTreeMap<BootKind, Boot>,
}

type Found = BTreeMap<Backend, Measured>;

/// The page, from the lines in `results`.
///
/// # Errors
///
/// If there are no lines.
pub fn from_results(results: &Path) -> Result<String, LaunchError> {
    let mut found = Found::new();
    for backend in Backend::ALL {
        let path = results.join(format!("bench-{backend}.jsonl"));
        if let Ok(text) = std::fs::read_to_string(path) {
            found.insert(backend, Measured::read(&text));
        }
    }
    match found.is_empty() {
        true => Err(LaunchError::NoResults {
            path: results.to_owned(),
        }),
        false => Ok(page(&found)),
    }
}

impl Measured {
    /// Of several lines for the same measurement, the last counts.
    fn read(text: &str) -> Self {
        let mut measured = Self::default();
        for line in text.lines().filter_map(Line::find) {
            match line {
                Line::Run {
                    date,
                    host,
                    versions,
                    ..
                } => {
                    measured.date = date;
                    measured.about = [vec![host], versions].concat();
                }
                Line::Timing(timing) => {
                    let key = (timing.way.clone(), timing.cpus);
                    measured.timings.insert(key, timing);
                }
                Line::Arming(arming) => {
                    measured.armings.insert(arming.probes, arming);
                }
                Line::Boot(boot) => {
                    measured.boots.insert(boot.kind, boot);
                }
                Line::Host { .. } | Line::Case(_) | Line::Sweep(_) | Line::End { .. } => (),
            }
        }
        measured
    }

    fn timing(&self, way: &str) -> Option<&Timing> {
        self.timings
            .get(&(way.to_owned(), 1))
            .filter(|timing| !timing.rounds_ns.is_empty())
    }

    /// The boot of a kind, if measured.
    fn boot(&self, kind: BootKind) -> Option<&Boot> {
        let boot = self.boots.get(&kind);
        boot.filter(|boot| !boot.ran_ns.is_empty())
    }

    /// Nanoseconds added to a call by a hit: by the median of the rounds, and by the quartiles.
    fn cost(&self, way: &Way) -> Option<[f64; 3]> {
        let timing = self.timing(way.key)?;
        let without = match way.without {
            Some(without) => quantile(&self.timing(without)?.rounds_ns, 0.5),
            None => 0.0,
        };
        let calls = as_float(timing.calls);
        let at = |part| (quantile(&timing.rounds_ns, part) - without) / calls;
        Some([at(0.5), at(0.25), at(0.75)])
    }

    fn ratio(&self, way: &Way) -> Option<f64> {
        let floor = WAYS.iter().find(|way| way.key == FLOOR)?;
        let ([cost, ..], [floor, ..]) = (self.cost(way)?, self.cost(floor)?);
        (way.without.is_some() && floor > 0.0).then_some(cost / floor)
    }

    /// The unit of the reported times, in nanoseconds. In Bochs the unit is an instruction: only instructions make time pass.
    fn unit(&self, backend: Backend) -> Option<f64> {
        match backend {
            Backend::Nested | Backend::Local => Some(1.0),
            Backend::Intel | Backend::Amd => {
                let speed = self.timing(SPEED)?;
                Some(quantile(&speed.rounds_ns, 0.5) / as_float(speed.calls))
            }
        }
    }

    /// VM exits for each hit, as counted by the engine; for each call, if there are no hits.
    fn exits(&self, way: &Way) -> Option<f64> {
        let timing = self.timing(way.key)?;
        let calls = timing.calls * timing.rounds_ns.len() as u64;
        let hits = if timing.hits > 0 { timing.hits } else { calls };
        match way.exits {
            Some(exits) => Some(as_float(exits)),
            None => Some(as_float(timing.exits) / as_float(hits)),
        }
    }

    /// The time of a call in `way`, by the median of the rounds and by the quartiles.
    fn call(&self, backend: Backend, way: &str) -> Option<[f64; 3]> {
        let timing = self.timing(way)?;
        let unit = self.unit(backend)?;
        let at = |part| quantile(&timing.rounds_ns, part) / as_float(timing.calls) / unit;
        Some([at(0.5), at(0.25), at(0.75)])
    }

    /// Hits in a second or, in Bochs, in a billion instructions of each processor.
    fn rate(&self, backend: Backend, way: &str, cpus: u8, part: f64) -> Option<f64> {
        let timing = self.timings.get(&(way.to_owned(), cpus))?;
        let hits = as_float(timing.calls) * f64::from(cpus);
        Some(hits * 1e9 / quantile(&timing.rounds_ns, part) * self.unit(backend)?)
    }

    /// The time added to a call in the stock guest by the probes of the row `key`. `None` if the row has no probe.
    fn added(&self, backend: Backend, key: &str) -> Option<f64> {
        let row = ROWS.iter().find(|row| row.key == key)?;
        let [[with, ..], [without, ..]] =
            [self.call(backend, key)?, self.call(backend, row.without?)?];
        Some(with - without)
    }
}

fn as_float(number: u64) -> f64 {
    // Nanoseconds of hours are held exactly.
    number as f64
}

/// The smallest value of `values` with at least the share `part` of the others below.
fn quantile(values: &[u64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    let index = (0..=last)
        .find(|index| *index as f64 >= part * last as f64)
        .unwrap_or(last);
    sorted.get(index).copied().map_or(f64::NAN, as_float)
}

fn page(found: &Found) -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str("| | when | on |\n|---|---|---|\n");
    for (backend, measured) in found {
        let about = measured.about.join("; ");
        let _ = writeln!(text, "| {backend} | {} | {about} |", measured.date);
    }
    text.push_str(HITS);
    text.push_str(&hits(found));
    text.push_str(STOCK);
    text.push_str(&in_stock(found));
    text.push_str(RATES);
    text.push_str(&rates(found));
    text.push_str(GDBSTUB);
    text.push_str(&gdbstub(found));
    text.push_str(RECORDS);
    text.push_str(&records(found));
    text.push_str(BOOTS);
    text.push_str(&boots(found));
    text.push_str(ARMING);
    text.push_str(&armings(found));
    text.push_str("\n## Targets\n\n");
    text.push_str(&targets(found));
    text.push_str(READING);
    text
}

fn or_empty(cell: Option<String>) -> String {
    cell.unwrap_or_default()
}

/// A whole number with groups of thousands.
fn number(value: f64) -> String {
    let plain = format!("{value:.0}");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", &*plain),
    };
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    format!("{sign}{}", groups.join(" "))
}
