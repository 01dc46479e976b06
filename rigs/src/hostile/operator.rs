//! Probes come and go through the control socket while the guest misbehaves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use control::api::{AddProbe, AddProbes, ChangeProbe, Removed, SetKnobs};
use control::{Client, ClientError, StacksOf};
use manifest::ProbeAction;

use crate::busy::random::Random;
use errors::chain;

/// The maximum number of the operator's probes at a time.
const PROBES_MAX: usize = 300;
const LOOK: Duration = Duration::from_millis(20);
/// Addresses to read at: hyprobe's own memory, the text, edges, nothing.
/// The last two lead through the page tables that the guest has made for its processors (`acts.h`, `tables`).
const READS: [(&str, u64); 10] = [
    ("gpa", 0),
    ("gpa", 0x3ff_f000),
    ("gpa", 0x10_0000_0000),
    ("gpa", 0x10_0400_0000),
    ("gpa", 0xffff_ffff_ffff_f000),
    ("gva", 0xffff_ffff_8100_0000),
    ("gva", 0x10_0000),
    ("gva", 0x7fff_ffff_f000),
    ("gva", 0xffff_a100_0000_0000),
    ("gva", 0xffff_a180_0000_0000),
];
const FILTERS: [&str; 4] = [
    "arg0 != 0",
    "cpu == 1",
    "arg2 > 4096 && cpu == 0",
    "arg1 == 7",
];
/// Values along pointers that the guest scribbles over.
const VALUES: [&str; 4] = [
    "init_task",
    "*init_task.tasks.next",
    "modules.next->next",
    "per_cpu(current_task, 1)->mm->pgd",
];
const AGGREGATES: [&str; 3] = ["hist(arg2)", "sum(arg0)", "max(arg1)"];

/// The requests and answers of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Operated {
    pub(super) added: u64,
    pub(super) removed: u64,
    pub(super) exits: u64,
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) slowest: Duration,
    /// The first failure.
    pub(super) failure: Option<String>,
}

impl Operated {
    fn note(&mut self, removed: &Removed) {
        self.removed += removed.removed;
        let exits = removed.probes.iter().map(|probe| probe.summary.exits);
        self.exits = exits.fold(self.exits, u64::saturating_add);
    }
}

/// An operator of one run.
pub(super) struct Operator<'a> {
    pub(super) socket: &'a Path,
    pub(super) probes: &'a [String],
    /// The guest's console. It has bytes when the guest runs; until an outer Linux has booted, requests wait.
    pub(super) console: &'a Path,
    /// Set when the guest has begun.
    pub(super) is_up: &'a AtomicBool,
    /// Set when the run is over.
    pub(super) is_over: &'a AtomicBool,
    /// The time from the guest's beginning to the operator's request to stop, if the operator makes one.
    pub(super) stops_after: Option<Duration>,
    /// The limit for an answer, and for the end of a run whose connection has broken.
    pub(super) answer_time: Duration,
}

impl Operator<'_> {
    /// Makes requests until the run is over.
    pub(super) fn run(&self, seed: u64) -> Operated {
        let mut operated = Operated::default();
        while !(self.socket.exists() && self.console.metadata().is_ok_and(|file| file.len() > 0)) {
            if self.is_over.load(Ordering::Acquire) {
                return operated;
            }
            std::thread::sleep(LOOK);
        }
        if let Err(failure) = self.work(&mut Random::new(seed), &mut operated) {
            operated.failure = Some(failure);
        }
        operated
    }

    fn work(&self, random: &mut Random, operated: &mut Operated) -> Result<(), String> {
        let client = Client::new(self.socket).map_err(chain)?;
        let (mut up, mut ids) = (None, Vec::new());
        while !self.is_over.load(Ordering::Acquire) {
            let requested_at = Instant::now();
            if up.is_none() && self.is_up.load(Ordering::Acquire) {
                up = Some(Instant::now());
            }
            let attacked = up.map(|up: Instant| up.elapsed());
            let stops =
                attacked.is_some_and(|time| self.stops_after.is_some_and(|after| time > after));
            let answer = match stops {
                true => client.command("stop").map(drop),
                false => self.ask(&client, random, &mut ids, operated),
            };
            let took = requested_at.elapsed();
            match answer {
                Ok(()) => operated.requests += 1,
                Err(ClientError::Refused(problem)) if problem.status != 500 => {
                    operated.refused += 1
                }
                Err(ClientError::Refused(problem)) => {
                    return Err(format!(
                        "the run answers with an error of its own: {problem:?}"
                    ));
                }
                Err(
                    ClientError::Connect { .. } | ClientError::Broken(_) | ClientError::Answer(_),
                ) if took <= self.answer_time => return self.await_end(),
                Err(
                    ClientError::Connect { .. } | ClientError::Broken(_) | ClientError::Answer(_),
                ) => return Err(format!("no answer came in {took:?}")),
                Err(error) => return Err(chain(error)),
            }
            operated.slowest = operated.slowest.max(took);
            if took > self.answer_time {
                return Err(format!("an answer took {took:?}"));
            }
            if stops {
                return self.await_end();
            }
            std::thread::sleep(Duration::from_millis(random.below(30) as u64));
        }
        Ok(())
    }

    /// The connection ends when the run does.
    fn await_end(&self) -> Result<(), String> {
        let began = Instant::now();
        while !self.is_over.load(Ordering::Acquire) {
            if began.elapsed() > self.answer_time {
                return Err(format!(
                    "the socket is closed, and the run goes on after {:?}",
                    self.answer_time
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn ask(
        &self,
        client: &Client,
        random: &mut Random,
        ids: &mut Vec<u64>,
        operated: &mut Operated,
    ) -> Result<(), ClientError> {
        let kind = if ids.len() > PROBES_MAX {
            99
        } else {
            random.below(100)
        };
        match kind {
            0..40 => {
                let count = 1 + random.below(6);
                let probes = (0..count).map(|_| self.probe(random)).collect();
                let added = client.add(&AddProbes::Many(probes))?;
                operated.added += added.ids.len() as u64;
                ids.extend(added.ids);
            }
            40..66 => {
                if let Some(id) = any(random, ids) {
                    ids.retain(|other| *other != id);
                    operated.note(&client.remove(&id.to_string())?);
                }
            }
            66..74 => {
                let change = ChangeProbe {
                    enabled: Some(random.below(2) == 0),
                    name: None,
                };
                if let Some(id) = any(random, ids) {
                    client.change(&id.to_string(), &change)?;
                }
            }
            74..79 => {
                client.set_knobs(&SetKnobs {
                    enabled: Some(random.below(4) != 0),
                    optimization: Some(random.below(3) != 0),
                })?;
            }
            79..81 => drop(client.probes()?),
            81..83 | 92 => look(client, random)?,
            83..87 => {
                if let Some(id) = any(random, ids) {
                    client.stats(&id.to_string())?;
                }
            }
            87..92 => {
                let (place, at) = READS[random.below(READS.len())];
                client.memory(place, at, 1 + random.below(0x10000) as u64)?;
            }
            93 => drop(client.symbols("*e*")?),
            94..97 => {
                client.command("pause")?;
                client.command("resume")?;
            }
            97..99 => drop(client.machine()?),
            _ => {
                operated.note(&client.remove_all()?);
                ids.clear();
            }
        }
        Ok(())
    }

    /// One probe in four has an event for each hit, which bounds the size of the outputs.
    fn probe(&self, random: &mut Random) -> AddProbe {
        let spec = &self.probes[random.below(self.probes.len())];
        let (filter, aggregate) = match random.below(8) {
            0 | 1 => (Some(FILTERS[random.below(FILTERS.len())].to_owned()), None),
            2 => (
                None,
                Some(AGGREGATES[random.below(AGGREGATES.len())].to_owned()),
            ),
            _ => (None, None),
        };
        let counts = aggregate.is_none() && random.below(4) != 0;
        AddProbe {
            enabled: random.below(8) != 0,
            maxactive: spec.starts_with("kretprobe").then_some(64),
            action: counts.then_some(ProbeAction::Count),
            stack: aggregate.is_none() && !counts && random.below(2) == 0,
            filter,
            aggregate,
            ..AddProbe::new(spec.as_str())
        }
    }
}

/// Looks at lists, stacks, the log and values in memory that the guest scribbles over.
fn look(client: &Client, random: &mut Random) -> Result<(), ClientError> {
    match random.below(8) {
        0 => drop(client.tasks(false)?),
        1 => drop(client.tasks(true)?),
        2 => drop(client.modules()?),
        3 => drop(client.log()?),
        4 => drop(client.stacks(StacksOf::Vcpus)?),
        5 => drop(client.stacks(StacksOf::All)?),
        6 => drop(client.stacks(StacksOf::Task(1))?),
        _ => {
            let value = VALUES[random.below(VALUES.len())];
            client.print(value, None, None)?;
        }
    }
    Ok(())
}

fn any(random: &mut Random, ids: &[u64]) -> Option<u64> {
    ids.get(random.below(ids.len())).copied()
}
