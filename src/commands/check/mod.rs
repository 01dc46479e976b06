//! `hyprobe check`: predicts the result of a manifest's probes, or of a probe on every function, from the kernel's file alone.

mod all;

use std::io::{self, Write};

use events::Hex;
use manifest::{InvalidManifest, ProbeSpec, WatchedAccess};
use probes::{Place, PlantTime, Resolved, Via, resolve};
use serde::Serialize;
use thiserror::Error;

use crate::cli::{CheckArgs, RunArgs};
use crate::exit::{Exit, Failure};
use crate::report::{Progress, printable};
use crate::run::guest::{Guest, GuestError};
use crate::run::judged::{AdmitError, admit};
use crate::run::merge::{MergeError, merge};
use crate::source_lines::{MayFetch, SourceLinesError, replace};
use crate::stderr;

/// The reason why no verdicts can be printed.
#[derive(Debug, Error)]
pub(crate) enum CheckError {
    /// The command line and the manifest do not make a run.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The guest's files cannot be used, or a probe cannot be resolved.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// Source lines and inlined copies.
    #[error(transparent)]
    SourceLines(#[from] SourceLinesError),
    /// The probes of the expectations.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// Standard output.
    #[error("cannot write to standard output")]
    Write(#[source] io::Error),
}

impl Failure for CheckError {
    fn exit(&self) -> Exit {
        match self {
            Self::Merge(error) => error.exit(),
            Self::Guest(error) => error.exit(),
            Self::SourceLines(error) => error.exit(),
            Self::Admit(error) => error.exit(),
            Self::Write(_) => Exit::HostCannot,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Merge(error) => error.help(),
            Self::Guest(error) => error.help(),
            Self::SourceLines(error) => error.help(),
            Self::Admit(error) => error.help(),
            Self::Write(_) => None,
        }
    }

    fn manifest(&self) -> Option<&InvalidManifest> {
        match self {
            Self::Merge(error) => error.manifest(),
            Self::Guest(_) | Self::SourceLines(_) | Self::Admit(_) | Self::Write(_) => None,
        }
    }
}

/// The number of debug registers of a processor.
const DEBUG_REGISTERS: usize = 4;

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    probe: &'a str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<&'a str>,
    what: String,
}

/// Prints for each probe the address, or the reason for a refusal; or, for each function, whether a probe can be optimised.
pub(crate) fn check(args: &CheckArgs) -> Result<Exit, CheckError> {
    if args.all {
        return all::check(args);
    }
    let progress = Progress::on_stderr();
    let verdicts = verdicts(args, &progress);
    progress.clear();
    let verdicts = verdicts?;
    let mut out = io::stdout().lock();
    let mut exit = Exit::Done;
    let width = verdicts.iter().map(|found| found.name.len()).max();
    let mut debug_registers = 0;
    for found in &verdicts {
        let line = line(found, &mut debug_registers);
        if line.verdict == "refused" {
            exit = Exit::ExpectationFailed;
        }
        let wrote = match args.json {
            true => serde_json::to_string(&line)
                .map_err(io::Error::from)
                .and_then(|line| writeln!(out, "{line}")),
            false => writeln!(
                out,
                "{:<width$}  {:<7}  {}",
                line.probe,
                line.verdict,
                line.what,
                width = width.unwrap_or(0)
            ),
        };
        wrote.map_err(CheckError::Write)?;
    }
    Ok(exit)
}

fn verdicts(args: &CheckArgs, progress: &Progress) -> Result<Vec<Resolved>, CheckError> {
    let say = |text| progress.say(text);
    let run = RunArgs {
        manifest: args.manifest.clone(),
        kernel: args.kernel.clone(),
        image: args.image.clone(),
        ..RunArgs::default()
    };
    let mut plan = merge(&run, &say)?;
    let guest = Guest::load(&plan.config, &say)?;
    let replaced = replace(
        &mut plan.config,
        &mut plan.expectations,
        &guest,
        &args.debug_info,
        MayFetch::Yes(&say),
    )?;
    for note in &replaced.notes {
        progress.pause(|| stderr::say(format_args!("hyprobe: {}", printable(note))));
    }
    let (expectations, spellings) = (plan.expectations, replaced.spellings);
    admit(&mut plan.config, expectations, &guest.kernel, &spellings)?;
    guest.check(&plan.config)?;
    let mut found = Vec::new();
    let of = |spec: &ProbeSpec| resolve(&guest.kernel, spec, 0).map_err(GuestError::from);
    for probe in &plan.config.probes {
        found.extend(of(&probe.at)?);
    }
    for injection in &plan.config.injections {
        found.extend(of(&injection.at)?.into_iter().map(|found| Resolved {
            name: found.name.replacen("kprobe:", "inject:", 1).into(),
            ..found
        }));
    }
    Ok(found)
}

/// Builds the line of `found`. `debug_registers` counts the debug registers taken by earlier probes.
fn line<'f>(found: &'f Resolved, debug_registers: &mut usize) -> Line<'f> {
    let (verdict, what) = match &found.place {
        Ok(place) if place.via == Via::DebugRegister => {
            *debug_registers += 1;
            match *debug_registers > DEBUG_REGISTERS {
                true => (
                    "refused",
                    format!(
                        "{} at {}: the kernel patches the instruction at run time, and all four debug registers are \
                         taken",
                        place.symbol, place.ip
                    ),
                ),
                false => ("armed", place_in_words(place)),
            }
        }
        Ok(place) => ("armed", place_in_words(place)),
        Err(refusal) if refusal.is_pending() => ("pending", refusal.to_string()),
        Err(refusal) => ("refused", refusal.to_string()),
    };
    let place = found.place.as_ref().ok();
    Line {
        probe: &found.name,
        verdict,
        ip: place.map(|place| place.ip.into()),
        symbol: place.map(|place| &*place.symbol),
        what,
    }
}

fn place_in_words(place: &Place) -> String {
    let mut text = format!("{} at {}", place.symbol, place.ip);
    match place.via {
        Via::Plant { at, .. } if at != place.ip => {
            text += &format!(", noticed at {at}: the kernel patches the instruction itself");
        }
        Via::Plant { .. } => (),
        Via::Data { len, access } => {
            let accesses = match access {
                WatchedAccess::Writes | WatchedAccess::HardwareWrites => "writes to",
                WatchedAccess::Reads => "reads of",
                WatchedAccess::Both => "reads of and writes to",
            };
            let seen = match access.is_in_register() {
                true => "in one of the four debug registers",
                false => "on a protected page",
            };
            text += &format!(", {accesses} {len} bytes {seen}");
        }
        Via::DebugRegister => text += ", in one of the four debug registers",
    }
    if place.when == PlantTime::BootPatched {
        text += ", from when the kernel has patched itself";
    }
    if place.init {
        text += ", until its text is freed after boot";
    }
    text
}
