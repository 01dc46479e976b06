//! Checks expectations about probes with programs.
//!
//! An expectation selects hits by the names of probes: the expectation uses the probe of the manifest. A probe with a filter is used as it
//! is, if only one meaning is possible.

use std::ops::Range;

use super::error::Problem;
use crate::{Expectation, ProbeAction, ProbeConfig, ProbeSpec};

/// Notes each expectation, with its position in the text, that contradicts the program of its probe.
pub(super) fn check(
    probes: &[ProbeConfig],
    expectations: &[(Expectation, Range<usize>)],
    problems: &mut Vec<Problem>,
) {
    if !probes.iter().any(ProbeConfig::has_program) {
        return;
    }
    let probes: Vec<_> = probes.iter().map(|it| (it, it.at.to_string())).collect();
    for (expectation, span) in expectations {
        for (spec, action) in expectation.probes() {
            if let Some((what, help)) = problem(&probes, spec, action) {
                problems.push(Problem::Meaning {
                    table: "[[expect]]",
                    what,
                    span: span.clone().into(),
                    help: Some(help.to_owned()),
                });
            }
        }
    }
}

/// The problem of an expectation about `spec`, with a solution. `probes` are the manifest's probes with their names.
fn problem(
    probes: &[(&ProbeConfig, String)],
    spec: &ProbeSpec,
    action: ProbeAction,
) -> Option<(String, &'static str)> {
    let wanted = spec.to_string();
    let overlaps = |probe: &&(&ProbeConfig, String)| {
        let (probe, name) = probe;
        probe.at.stands_for(&wanted) || spec.stands_for(name)
    };
    let there: Vec<_> = probes.iter().filter(overlaps).map(|(it, _)| it).collect();
    let with_program = there.iter().find(|probe| probe.has_program())?;
    let at = &with_program.at;
    if there.len() > 1 || at != spec {
        return Some((
            format!("is about `{spec}`, which the probe `{at}` with its program is not all of"),
            "an expectation and a filter or an aggregate go together if both name the same place, which has no other \
             probe",
        ));
    }
    (with_program.action.aggregate().is_some() && action == ProbeAction::Trace).then(|| {
        (
            format!("needs each hit of `{at}`, and an aggregate keeps none"),
            "write a filter in place of the aggregate",
        )
    })
}
