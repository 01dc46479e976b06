//! What is in the files that runs have left.

use std::collections::BTreeMap;
use std::path::Path;

use crate::line::{Backend, Case, Line};

/// What the last run of each kind has said.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) runs: BTreeMap<Backend, Run>,
    pub(super) cases: Vec<Case>,
}

/// On what a run was made.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) date: String,
    /// The machine first.
    pub(super) about: Vec<String>,
}

impl Found {
    /// A kind that has not been run has nothing here.
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

    /// The last word on a case is the one that counts.
    fn keep(&mut self, case: Case) {
        let same = |old: &&mut Case| (old.backend, &old.case) == (case.backend, &case.case);
        match self.cases.iter_mut().find(same) {
            Some(old) => *old = case,
            None => self.cases.push(case),
        }
    }
}

/// The case without what is planted and how many vCPUs there are.
pub(super) fn scenario(case: &str) -> &str {
    case.split('/').next().unwrap_or(case)
}
