//! `hyprobe symbols`: lists the symbols of a kernel, for use in probes.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use events::Hex;
use introspect::{Symbol, SymbolTable, kallsyms};
use manifest::{ProbeSpec, SpecError};
use probes::{PATTERN_HELP, resolve};
use serde::Serialize;
use thiserror::Error;

use super::named_kernel::{NamedKernel, NamedKernelError, input};
use super::named_sites;
use crate::cli::SymbolsArgs;
use crate::exit::{Exit, Failure};
use crate::report::Progress;
use crate::run::guest::{GuestError, load_kernel};

/// The number of similar names offered when no name matches.
const NEAR_NAMES: usize = 8;

/// Why no symbols can be shown.
#[derive(Debug, Error)]
pub(crate) enum SymbolsError {
    /// The kernel cannot be read.
    #[error(transparent)]
    Kernel(#[from] NamedKernelError),
    /// The contents of the kernel's file.
    #[error("cannot use {path}")]
    Contents {
        /// The kernel.
        path: PathBuf,
        /// The cause.
        source: kallsyms::KallsymsError,
    },
    /// No symbol has a matching name.
    #[error("no symbol matches `{pattern}`")]
    NoMatch {
        /// The pattern of the command line.
        pattern: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The specification of system calls or tracepoints.
    #[error("cannot list `{pattern}`")]
    Spec {
        /// The pattern of the command line.
        pattern: String,
        /// The cause.
        source: SpecError,
    },
    /// The kernel's system calls or tracepoints.
    #[error(transparent)]
    Sites(#[from] GuestError),
    /// Standard output.
    #[error("cannot write to standard output")]
    Write(#[source] io::Error),
}

impl Failure for SymbolsError {
    fn exit(&self) -> Exit {
        match self {
            Self::Kernel(error) => error.exit(),
            Self::Contents { .. } | Self::Spec { .. } => Exit::Usage,
            Self::Sites(error) => error.exit(),
            Self::NoMatch { .. } => Exit::ExpectationFailed,
            Self::Write(_) => Exit::HostCannot,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::NoMatch { near, .. } if !near.is_empty() => {
                Some(format!("near names: {}", near.join(", ")))
            }
            Self::NoMatch { .. } => Some(PATTERN_HELP.to_owned()),
            Self::Spec { source, .. } => source.help(),
            Self::Sites(error) => error.help(),
            _ => None,
        }
    }
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    address: Hex,
    #[serde(rename = "type")]
    kind: char,
    name: &'a str,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
}

/// Prints the symbols with a name that matches as a whole, in the order of the addresses.
pub(crate) fn symbols(args: &SymbolsArgs) -> Result<Exit, SymbolsError> {
    let progress = Progress::on_stderr();
    if named_sites::is_listed(&args.pattern) {
        return list_sites(args, &progress);
    }
    let table = table(args, &progress);
    progress.clear();
    let table = table?;
    let mut out = BufWriter::new(io::stdout().lock());
    match print(&table, &args.pattern, args.json, &mut out) {
        Ok(0) => Err(SymbolsError::NoMatch {
            pattern: args.pattern.clone(),
            near: near_names(&table, &args.pattern),
        }),
        Ok(_) => Ok(Exit::Done),
        // The reader has closed the pipe: no more lines are wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(error) => Err(SymbolsError::Write(error)),
    }
}

/// Prints the system calls or tracepoints of a pattern.
fn list_sites(args: &SymbolsArgs, progress: &Progress) -> Result<Exit, SymbolsError> {
    let spec: ProbeSpec = args.pattern.parse().map_err(|source| SymbolsError::Spec {
        pattern: args.pattern.clone(),
        source,
    })?;
    let say = |text| progress.say(text);
    let loaded = input(args.kernel.as_deref(), args.image.as_deref(), progress)
        .map(|kernel| load_kernel(&kernel, &say).map(|(_, _, kernel)| kernel));
    progress.clear();
    let kernel = loaded??;
    let found = resolve(&kernel, &spec, 0).map_err(GuestError::from)?;
    let mut out = BufWriter::new(io::stdout().lock());
    match named_sites::print(&kernel, &spec, &found, args.json, &mut out) {
        Ok(()) => Ok(Exit::Done),
        // The reader has closed the pipe: no more lines are wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(error) => Err(SymbolsError::Write(error)),
    }
}

/// The names similar to `pattern`. A text with other characters is a pattern, and not a misspelt name.
fn near_names(table: &SymbolTable, pattern: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if pattern.chars().all(is_name) {
        table.nearest_names(pattern, NEAR_NAMES)
    } else {
        Vec::new()
    }
}

fn table(args: &SymbolsArgs, progress: &Progress) -> Result<SymbolTable, SymbolsError> {
    let NamedKernel { path, vmlinux } =
        NamedKernel::read(args.kernel.as_deref(), args.image.as_deref(), progress)?;
    kallsyms::from_elf(&vmlinux).map_err(|source| SymbolsError::Contents { path, source })
}

/// Gives the number of symbols printed.
fn print(
    table: &SymbolTable,
    pattern: &str,
    json: bool,
    out: &mut impl Write,
) -> io::Result<usize> {
    let mut printed = 0;
    for symbol in table.matching(pattern) {
        printed += 1;
        if json {
            serde_json::to_writer(&mut *out, &line(&symbol))?;
            writeln!(out)?;
        } else {
            let (address, size) = (format!("{:#018x}", symbol.address.0), symbol.size);
            writeln!(out, "{address} {} {size:>8} {symbol}", symbol.kind)?;
        }
    }
    out.flush()?;
    Ok(printed)
}

fn line(symbol: &Symbol) -> Line<'_> {
    Line {
        address: symbol.address.into(),
        kind: symbol.kind,
        name: &symbol.name,
        size: symbol.size,
        module: symbol.module.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use address::Gva;
    use introspect::SymbolTableBuilder;

    use super::*;

    fn printed(pattern: &str, json: bool) -> String {
        let mut builder = SymbolTableBuilder::new();
        for (at, kind, name) in [
            (0xffff_ffff_8100_0000, 'T', "vfs_read"),
            (0xffff_ffff_8100_0040, 't', "vfs_readv"),
            (0xffff_ffff_8100_0100, 'D', "my_vfs_read"),
        ] {
            builder.push(Gva(at), kind, name);
        }
        let mut out = Vec::new();
        print(&builder.build(), pattern, json, &mut out).expect("print");
        String::from_utf8(out).expect("utf-8")
    }

    #[test]
    fn whole_names_match() {
        assert_eq!(
            printed("vfs_read", false),
            "0xffffffff81000000 T       64 vfs_read\n"
        );
        assert_eq!(printed("vfs_*", false).lines().count(), 2);
        assert_eq!(printed("*vfs_read*", false).lines().count(), 3);
        assert_eq!(printed("vfs_rea[a-d]", false).lines().count(), 1);
        assert_eq!(printed("read", false), "");
    }

    #[test]
    fn json_lines() {
        assert_eq!(
            printed("vfs_readv", true),
            "{\"address\":\"0xffffffff81000040\",\"type\":\"t\",\"name\":\"vfs_readv\",\"size\":192}\n"
        );
    }
}
