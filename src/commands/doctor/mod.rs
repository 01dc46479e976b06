//! `hyprobe doctor`: reports the abilities of this host, and hyprobe's choices for a run.

mod kvm;
mod nested;
mod sandbox;
mod stealth;
mod table;

use std::io::{self, IsTerminal as _, Write};

use manifest::Stealth;
use outer::Qemu;
use serde::Serialize;
use thiserror::Error;
use vmm::{Host, self_test};

use crate::cli::DoctorArgs;
use crate::exit::{Exit, Failure};
use crate::nested::{Choice, Unusable, choose};
use crate::report::Style;

/// The reason why no findings can be printed.
#[derive(Debug, Error)]
pub(crate) enum DoctorError {
    /// Standard output.
    #[error("cannot write to standard output")]
    Write(#[source] io::Error),
}

impl Failure for DoctorError {
    fn exit(&self) -> Exit {
        Exit::HostCannot
    }
}

/// The consequence of a finding for hyprobe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The finding is as expected.
    Ok,
    /// hyprobe does a part of the work in another way, or not at all.
    Warn,
    /// Because of the finding, nothing runs.
    No,
}

/// The group of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Group {
    /// `/dev/kvm` itself.
    Device,
    /// The capabilities that KVM reports.
    Capabilities,
    /// KVM's behaviour in the self-test.
    SelfTest,
    /// The requirements of nested runs.
    Nested,
    /// The mechanisms that confine a run.
    Sandbox,
    /// The levels of `--stealth`.
    Stealth,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    group: Group,
    /// For scripts: does not change.
    id: &'static str,
    /// For people.
    name: &'static str,
    found: String,
    verdict: Verdict,
    /// The consequence, in a sentence.
    means: String,
}

impl Check {
    fn new(group: Group, id: &'static str, name: &'static str) -> Self {
        let (found, means) = (String::new(), String::new());
        Self {
            group,
            id,
            name,
            found,
            verdict: Verdict::Ok,
            means,
        }
    }

    fn found(mut self, found: impl Into<String>) -> Self {
        self.found = found.into();
        self
    }

    fn verdict(mut self, verdict: Verdict, means: impl Into<String>) -> Self {
        (self.verdict, self.means) = (verdict, means.into());
        self
    }
}

/// A look of a guest at the traces of a kind of probe.
#[derive(Debug, Serialize)]
struct Trace {
    /// The name of the look.
    look: &'static str,
    /// The code with the least rights that can look.
    looker: &'static str,
    level: Stealth,
    /// The kind of probe.
    probe: &'static str,
    seen: bool,
}

/// All findings.
#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Check>,
    /// The choice of `--accel auto`: `kvm`, `nested`, or `None` for neither.
    accel: Option<&'static str>,
    /// The reason, in a sentence.
    why: String,
    /// What a guest finds that looks for probes, with `--stealth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    traces: Option<Vec<Trace>>,
}

/// Checks the host and prints the findings. If nothing can run here, the exit is a failure.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<Exit, DoctorError> {
    let report = examine(args.stealth);
    let mut out = io::stdout().lock();
    let written = if args.json {
        serde_json::to_writer(&mut out, &report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        table::write(&report, Style::for_stream(out.is_terminal()), &mut out)
    };
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(DoctorError::Write(error)),
        _ if report.accel.is_none() => Ok(Exit::HostCannot),
        _ => Ok(Exit::Done),
    }
}

fn examine(stealth: bool) -> Report {
    let opened = Host::open();
    let mut checks = kvm::device(&opened);
    let facts = match opened {
        Ok(host) => {
            checks.extend(kvm::capabilities(&host.capabilities()));
            let facts = self_test(&host).map_err(Unusable::from);
            checks.extend(kvm::self_test(&facts));
            facts
        }
        Err(error) => Err(error.into()),
    };
    let qemu = Qemu::find();
    checks.extend(nested::checks(&qemu));
    checks.extend(sandbox::checks());
    if stealth {
        checks.extend(stealth::checks(&facts));
    }
    let choice = choose(&facts, || qemu);
    Report {
        checks,
        accel: match &choice {
            Choice::Kvm { .. } => Some("kvm"),
            Choice::Nested { .. } => Some("nested"),
            Choice::Neither { .. } => None,
        },
        why: choice.to_string(),
        traces: stealth.then(stealth::traces),
    }
}
