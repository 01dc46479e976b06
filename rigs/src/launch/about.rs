//! The platform of a run, found out when the run is made.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use outer::Qemu;

use super::{LaunchError, error};
use crate::line::{Backend, Line};

/// The line with the commit, the machine and the versions.
pub(super) fn about(
    backend: Backend,
    qemu: Option<&Qemu>,
    outer: Option<&str>,
) -> Result<Line, LaunchError> {
    let commit = first_line(
        "git",
        &["describe", "--always", "--dirty", "--abbrev=12"],
        "",
    );
    let mut versions = Vec::new();
    versions.extend(commit.map(|commit| format!("hyprobe {commit}")));
    let machine = match (backend, qemu) {
        (Backend::Intel | Backend::Amd, _) => first_line(
            "dpkg-query",
            &["--show", "--showformat=Bochs ${Version}", "bochs"],
            "Bochs",
        ),
        (_, Some(qemu)) => first_line(qemu.path(), &["--version"], "QEMU"),
        (_, None) => None,
    };
    versions.extend(machine);
    versions.extend(outer.map(|release| format!("outer Linux {release}")));
    Ok(Line::Run {
        backend,
        date: first_line("date", &["--utc", "+%F %R"], "").unwrap_or_default(),
        host: host()?,
        versions,
    })
}

/// Processor, number of CPUs, and Linux.
fn host() -> Result<String, LaunchError> {
    let read = |path: &str| {
        std::fs::read_to_string(path).map_err(error::file("read", std::path::Path::new(path)))
    };
    let processors = read("/proc/cpuinfo")?;
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model.trim());
    let cpus = processors
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let linux = read("/proc/sys/kernel/osrelease")?;
    Ok(format!("{model}, {cpus} CPUs, Linux {}", linux.trim_end()))
}

/// The first line with `word` in a program's output.
fn first_line(program: impl AsRef<OsStr>, options: &[&str], word: &str) -> Option<String> {
    let output = Command::new(program)
        .args(options)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().find(|line| line.contains(word))?;
    Some(line.trim().to_owned())
}
