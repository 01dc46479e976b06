//! Boots with known outcomes: a resumed sweep asks the same questions in the same order, and gets these answers.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use super::boot::{Guest, Limits};
use super::deadline::EXITS_MAX;
use super::function::Functions;
use super::judge::{Baseline, Judged};
use super::outcome::{FunctionId, Outcome};
use super::search::Boots;
use super::step::{BootKey, Plan, Step};
use crate::line::{Line, print};

/// The time besides a boot's limit, to build the machine, resolve the probes, and stop vCPUs.
const SET_UP: Duration = Duration::from_secs(90);

/// The outcomes of earlier boots.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    outcomes: HashMap<BootKey, Outcome>,
    pub(super) boots: usize,
    pub(super) repeats: usize,
    pub(super) restarts: usize,
}

impl Known {
    /// From the lines of a sweep; `None` if they belong to a sweep with another plan.
    pub(super) fn from_lines(text: &str, plan: &Plan) -> Option<Self> {
        let mut known = Self::default();
        for line in text.lines().filter_map(Line::find) {
            match line {
                Line::Sweep(Step::Plan(other)) if other != *plan => return None,
                Line::Sweep(Step::Booted {
                    key,
                    outcome,
                    killed_outer,
                    ..
                }) => known.add(key, outcome, killed_outer),
                _ => (),
            }
        }
        Some(known)
    }

    fn add(&mut self, key: BootKey, outcome: Outcome, killed_outer: bool) {
        if self.outcomes.insert(key, outcome).is_none() {
            self.boots += 1;
            self.repeats += usize::from(key.attempt > 0);
            self.restarts += usize::from(killed_outer);
        }
    }
}

/// Boots, and prints each.
pub(super) struct Printing<'a> {
    pub(super) guest: &'a Guest<'a>,
    pub(super) functions: &'a Functions,
    pub(super) baseline: &'a Baseline,
    pub(super) known: Known,
    pub(super) output: &'a mut dyn Write,
}

impl Printing<'_> {
    fn outcome(&mut self, key: BootKey, set: &[FunctionId]) -> io::Result<Outcome> {
        if let Some(outcome) = self.known.outcomes.get(&key) {
            return Ok(outcome.clone());
        }
        let limits: Limits = self.baseline.limits;
        let booting = Step::Booting {
            key,
            functions: set.len(),
            limit_ms: millis(limits.total + EXITS_MAX + SET_UP),
        };
        print(self.output, &Line::Sweep(booting))?;
        let configuration = self.guest.configuration;
        let probes = self.functions.probes(set, configuration.action);
        let ran = self.guest.boot(&probes, limits);
        let outcome = self.baseline.judge(&Judged {
            functions: self.functions,
            configuration,
            set,
            ran: &ran,
        });
        let booted = Step::Booted {
            key,
            functions: set.len(),
            took_ms: millis(ran.took),
            outcome: outcome.clone(),
            killed_outer: false,
        };
        print(self.output, &Line::Sweep(booted))?;
        self.known.add(key, outcome.clone(), false);
        Ok(outcome)
    }
}

impl Boots for Printing<'_> {
    type Error = io::Error;

    /// A slow boot is repeated once: the host may have been busy. The second outcome counts, and the repeat is in the sum. A
    /// batch that ran out of time is not repeated: its halves are booted anyway.
    fn boot(&mut self, set: &[FunctionId]) -> io::Result<Outcome> {
        let key = BootKey::of(set);
        match self.outcome(key, set)? {
            Outcome::Slow { .. } if set.len() == 1 => self.outcome(key.again(), set),
            outcome => Ok(outcome),
        }
    }

    fn boot_again(&mut self, set: &[FunctionId]) -> io::Result<Outcome> {
        self.outcome(BootKey::of(set).again(), set)
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::Mode;
    use crate::sweep::outcome::Tally;

    fn plan(program: &str) -> Plan {
        Plan {
            mode: Mode::Live,
            cpus: 2,
            seed: 7,
            batch: 10,
            functions: 20,
            of: 30,
            batches: 2,
            refused: [].into(),
            program: program.to_owned(),
            guest: "g".to_owned(),
        }
    }

    #[test]
    fn boots_of_another_program_are_not_known() {
        let booted = Step::Booted {
            key: BootKey::of(&[FunctionId(1)]),
            functions: 1,
            took_ms: 1,
            outcome: Outcome::Well(Tally::default()),
            killed_outer: false,
        };
        let text: String = [Step::Plan(plan("a")), booted]
            .map(|step| serde_json::to_string(&Line::Sweep(step)).expect("json") + "\n")
            .concat();
        let known = Known::from_lines(&text, &plan("a")).expect("the same plan");
        assert_eq!(known.boots, 1);
        assert!(Known::from_lines(&text, &plan("b")).is_none());
        let other_guest = Plan {
            guest: "h".to_owned(),
            ..plan("a")
        };
        assert!(Known::from_lines(&text, &other_guest).is_none());
        assert!(Known::from_lines("", &plan("b")).is_some_and(|known| known.boots == 0));
    }
}
