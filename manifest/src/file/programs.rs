//! Checks expectations about probes with programs.

use std::ops::Range;

use super::error::Problem;
use crate::{Expectation, ProbeConfig, RequestedProbes};

/// Notes each expectation, with its position in the text, that contradicts the program of its probe.
pub(super) fn check(
    probes: &[ProbeConfig],
    expectations: &[(Expectation, Range<usize>)],
    problems: &mut Vec<Problem>,
) {
    let probes = RequestedProbes::new(probes);
    for (expectation, span) in expectations {
        let conflicts = probes.conflicts(expectation).into_iter();
        problems.extend(conflicts.map(|conflict| Problem::Meaning {
            table: "[[expect]]",
            what: conflict.to_string(),
            span: span.clone().into(),
            help: Some(conflict.help().to_owned()),
        }));
    }
}
