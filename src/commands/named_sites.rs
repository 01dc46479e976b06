//! `hyprobe symbols syscall:PATTERN` and `tracepoint:GROUP:PATTERN`: lists system calls and tracepoints with their arguments.

use std::collections::BTreeSet;
use std::io::{self, Write};

use introspect::Signature;
use manifest::{ProbeKind, ProbeSpec};
use probes::{Kernel, Resolved};
use serde::Serialize;

use crate::report::printable;

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    probe: &'a str,
    /// Absent without types.
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Vec<Param<'a>>>,
    /// The reason against a probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

#[derive(Debug, Serialize)]
struct Param<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    declared: &'a str,
}

/// Whether `pattern` is about system calls or tracepoints, and not about symbols.
pub(super) fn is_listed(pattern: &str) -> bool {
    let kind = pattern.split_once(':').map(|(kind, _)| kind);
    let listed = [ProbeKind::Syscall, ProbeKind::Tracepoint];
    listed.iter().any(|listed| Some(listed.keyword()) == kind)
}

/// Prints each of `found` once, although a tracepoint may have several sites.
pub(super) fn print(
    kernel: &Kernel,
    spec: &ProbeSpec,
    found: &[Resolved],
    json: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut printed = BTreeSet::new();
    for resolved in found {
        let probe = resolved.name.split('@').next().unwrap_or_default();
        if !printed.insert(probe) {
            continue;
        }
        let name = probe.rsplit(':').next().unwrap_or_default();
        let signature = match spec.kind {
            ProbeKind::Tracepoint => kernel.tracepoint_signature(name),
            _ => kernel.syscall_signature(name),
        };
        let refused = resolved.place.as_ref().err().map(ToString::to_string);
        write(probe, signature.ok().as_ref(), refused, json, out)?;
    }
    out.flush()
}

fn write(
    probe: &str,
    signature: Option<&Signature>,
    refused: Option<String>,
    json: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let params = signature.map(|signature| {
        let params = signature.params.iter().map(|param| Param {
            name: &param.name,
            declared: &param.shape.declared,
        });
        params.collect::<Vec<_>>()
    });
    if json {
        let line = Line {
            probe,
            params,
            refused,
        };
        serde_json::to_writer(&mut *out, &line)?;
        return writeln!(out);
    }
    let params = match params {
        Some(params) => params.iter().map(in_c).collect::<Vec<_>>().join(", "),
        None => "…".to_owned(),
    };
    let line = match refused {
        Some(why) => format!("{probe}({params})  refused: {why}"),
        None => format!("{probe}({params})"),
    };
    writeln!(out, "{}", printable(&line))
}

/// The declaration of a parameter.
fn in_c(param: &Param<'_>) -> String {
    let Param { name, declared } = param;
    let space = if declared.ends_with('*') { "" } else { " " };
    format!("{declared}{space}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_no_system_calls() {
        assert!(is_listed("syscall:*read*"));
        assert!(is_listed("tracepoint:sched:*"));
        assert!(!is_listed("vfs_*"));
        assert!(!is_listed("retsyscall:read"));
    }

    #[test]
    fn untyped_and_refused_sites_are_listed() {
        let mut out = Vec::new();
        write("syscall:f", None, None, false, &mut out).expect("written");
        write("syscall:g", None, Some("why".to_owned()), false, &mut out).expect("written");
        write("syscall:g", None, Some("why".to_owned()), true, &mut out).expect("written");
        // A kernel's file may have any name.
        write("syscall:\x1b[2J", None, None, false, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        assert_eq!(
            text,
            "syscall:f(…)\nsyscall:g(…)  refused: why\n{\"probe\":\"syscall:g\",\"refused\":\"why\"}\n\
             syscall:\\x1b[2J(…)\n"
        );
        let of = |declared, name| in_c(&Param { name, declared });
        assert_eq!(of("const char *", "filename"), "const char *filename");
        assert_eq!(of("int", "dfd"), "int dfd");
    }
}
