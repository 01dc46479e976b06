//! The lines in the files of earlier runs.

use std::collections::BTreeMap;
use std::path::Path;

use crate::line::{Backend, Case, Line};

/// The results of the last run of each kind.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) runs: BTreeMap<Backend, Run>,
    pub(super) cases: Vec<Case>,
}

/// The platform of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) date: String,
    /// The machine first.
    pub(super) about: Vec<String>,
}

impl Found {
    /// Reads the results of all kinds; a kind without a run has none.
    pub(super) fn read(results: &Path) -> Self {
        let mut found = Self::default();
        for backend in Backend::ALL {
            let path = results.join(format!("{backend}.jsonl"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            for line in text.lines().filter_map(Line::find) {
                match line {
                    Line::Run {
                        date,
                        host,
                        versions,
                        ..
                    } => {
                        let about = [vec![host], versions].concat();
                        found.runs.insert(backend, Run { date, about });
                    }
                    Line::Case(case) => found.keep(case),
                    Line::Host { .. }
                    | Line::Timing(_)
                    | Line::Arming(_)
                    | Line::Boot(_)
                    | Line::Sweep(_)
                    | Line::End { .. } => (),
                }
            }
        }
        found
    }

    /// Of several lines for the same case, the last counts.
    fn keep(&mut self, case: Case) {
        let same = |old: &&mut Case| (old.backend, &old.case) == (case.backend, &case.case);
        match self.cases.iter_mut().find(same) {
            Some(old) => *old = case,
            None => self.cases.push(case),
        }
    }
}

/// The case's name without the planted byte and the number of vCPUs.
pub(super) fn scenario(case: &str) -> &str {
    case.split('/').next().unwrap_or(case)
}
