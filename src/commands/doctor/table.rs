//! The findings for people.

use std::io::{self, Write};

use super::{Group, Report, Verdict};
use crate::report::{Ink, Style};

pub(super) fn write(report: &Report, style: Style, out: &mut impl Write) -> io::Result<()> {
    let names = report
        .checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    let mut group = None;
    for check in &report.checks {
        if group.replace(check.group) != Some(check.group) {
            writeln!(out, "{}", style.paint(Ink::Strong, heading(check.group)))?;
        }
        let (mark, ink) = match check.verdict {
            Verdict::Ok => ("ok  ", Ink::Good),
            Verdict::Warn => ("warn", Ink::Warning),
            Verdict::No => ("no  ", Ink::Bad),
        };
        let means = if check.means.is_empty() { "" } else { ": " };
        writeln!(
            out,
            "  {}  {:names$}  {}{means}{}",
            style.paint(ink, mark),
            check.name,
            check.found,
            check.means
        )?;
    }
    let used = report.accel.unwrap_or("nothing");
    writeln!(out)?;
    writeln!(out, "--accel auto uses {}", style.paint(Ink::Strong, used))?;
    writeln!(out, "{}", report.why)?;
    if report.traces.is_some() {
        let heading = "What a guest finds that looks for probes";
        writeln!(out, "\n{}", style.paint(Ink::Strong, heading))?;
        write!(
            out,
            "{}",
            invisibility::table().replace("**seen**", "seen    ")
        )?;
        writeln!(
            out,
            "Any program sees the time of a hit: an exit takes microseconds."
        )?;
    }
    Ok(())
}

const fn heading(group: Group) -> &'static str {
    match group {
        Group::Device => "KVM",
        Group::Capabilities => "What KVM says it can do",
        Group::SelfTest => "What it does when it is tried",
        Group::Nested => "Nested",
        Group::Sandbox => "Sandbox",
        Group::Stealth => "Levels of --stealth",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Check;

    #[test]
    fn columns_and_the_end() {
        let report = Report {
            checks: vec![
                Check::new(Group::Device, "device", "/dev/kvm").found("there"),
                Check::new(Group::Nested, "qemu", "QEMU")
                    .found("missing")
                    .verdict(Verdict::Warn, "install it"),
            ],
            accel: Some("kvm"),
            why: "because".to_owned(),
            traces: None,
        };
        let mut out = Vec::new();
        write(&report, Style::plain(), &mut out).expect("write");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "KVM\n\
             \u{20} ok    /dev/kvm  there\n\
             Nested\n\
             \u{20} warn  QEMU      missing: install it\n\
             \n\
             --accel auto uses kvm\n\
             because\n"
        );
    }
}
