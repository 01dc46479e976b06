//! Probes that share a site: one detour serves all of them, with a part for each.
//!
//! ```text
//!  site ── jmp ──▶ ┌ part of kprobe:f, counted ──────────┐
//!                  │ part of kprobe:f, emits an event    │── exit, no room ──▶ VMM: this hit ──┐
//!                  │ part of kretprobe:f                 │ ◀───────────── RIP := next part ────┘
//!                  │ displaced instructions, jump back   │
//!                  └─────────────────────────────────────┘
//! ```
//!
//! A part has a number, which its records and its exit carry, and does not depend on the other parts. A hit that exits is
//! therefore the hit of one part, and the later parts are executed after the VMM has handled the exit.
//!
//! A part belongs to the site and to a probe, not to one detour. When a probe is added or removed, another detour takes over,
//! with the parts of the remaining probes: a task in the former detour counts and records for them.

use std::sync::Arc;

use address::Gva;
use detour::{Detour, Keeps, Part, Processor, Use};
use introspect::PerCpu;
use manifest::program::{Filter, Operand};
use text::GuestError;

use crate::engine::records::Records;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::engine::tasks::Tasks;
use crate::plant::Plant;
use crate::registry::{Probe, Purpose};

/// The receiver of a detour part's work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Served<'p> {
    /// The calls that return to the given site.
    Returns(Gva),
    /// A probe, with the probed address.
    Probe(&'p Arc<Probe>, Gva),
}

/// The reason why each hit of a plant has to exit, independent of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Hindrance<'p> {
    /// No detour can do the work of the given probe.
    #[error("`{0}` is at the same place, and its hits exit")]
    Probe(&'p str),
    /// A hit shows memory, which a record does not hold.
    #[error("hits of `{0}` show {1}, read at an exit")]
    Memory(&'p str, &'static str),
    /// A hit needs the arguments of a system call.
    #[error(
        "hits of `{0}` need the arguments of the system call, which are read from memory at an exit"
    )]
    Caller(&'p str),
    /// A kernel event probe.
    #[error("hyprobe itself has a plant at the same place, at `{0}`, whose hits exit")]
    KernelEvent(&'p str),
    /// Returns are to be reported to a handler, or with the stack.
    #[error(
        "calls that are followed return to the same place, and returns exit: they call a handler, show the stack or add a number of the task"
    )]
    Returns,
    /// More probes than one detour serves.
    #[error("{0} probes are at the same place: a detour serves {MAX_SERVED} at the most")]
    TooMany(usize),
}

/// Whether a part with this work reads members of the task.
fn reads_task_members(filter: Option<&Filter>, keeps: Keeps) -> bool {
    let is_member = |operand: Operand| matches!(operand, Operand::Task(_));
    let mut conditions = filter.iter().flat_map(|filter| filter.conditions());
    conditions.any(|condition| condition.operand().is_none_or(is_member))
        || match keeps {
            Keeps::Records | Keeps::Calls | Keeps::Returns | Keeps::EntryReturns => true,
            Keeps::Aggregate(aggregate) => is_member(aggregate.of()),
            Keeps::Count | Keeps::Exits => false,
        }
}

/// The maximum number of probes of a detour: their work is chosen and written with all vCPUs paused.
const MAX_SERVED: usize = 16;

/// Sets the reason why the hits of the probes at `plant` exit although a detour could serve them; `None` if they do not exit.
pub(crate) fn set_unoptimised(plant: &Plant, why: Option<&str>) {
    for (probe, _) in &plant.probes {
        let would_do = probe.kept_by_detour().is_some()
            || probe.reads_memory()
            || probe.program_reads_memory();
        if would_do {
            probe.tier.set_optimised(why.is_none());
            probe.status.set_unoptimised(why.map(str::to_owned));
        }
    }
}

/// Assigns the parts of a detour to the probes and the returns of a site.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) running: Arc<Running>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) records: Arc<Records>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) return_sites: Arc<ReturnSites>,
}

impl Parts {
    /// The reason why no detour can serve `plant`, if any. Called at every hit.
    pub(crate) fn hindrance<'p>(&self, plant: &'p Plant) -> Option<Hindrance<'p>> {
        if plant.returns && self.return_sites.must_exit() {
            return Some(Hindrance::Returns);
        }
        if plant.probes.len() > MAX_SERVED {
            return Some(Hindrance::TooMany(plant.probes.len()));
        }
        let mut probes = plant.probes.iter().map(|(probe, _)| probe);
        let probe = probes.find(|probe| probe.kept_by_detour().is_none())?;
        Some(match probe.purpose {
            _ if !probe.arguments.is_registers()
                && (probe.reads_memory() || probe.program_reads_memory()) =>
            {
                Hindrance::Caller(&probe.name)
            }
            _ if probe.reads_memory() && probe.has_stack => {
                Hindrance::Memory(&probe.name, "the stack")
            }
            _ if probe.reads_memory() && probe.shows_variables() => {
                Hindrance::Memory(&probe.name, "a variable in memory, or a string")
            }
            _ if probe.reads_memory() => {
                Hindrance::Memory(&probe.name, "a string or an argument on the stack")
            }
            Purpose::KernelEvent(_) => Hindrance::KernelEvent(&probe.name),
            _ => Hindrance::Probe(&probe.name),
        })
    }

    /// The receivers of a detour that replaces `plant`, in the order of reports at an exit, with the use of each part. The plant
    /// has no [`Hindrance`].
    pub(crate) fn served<'p>(&self, plant: &'p Plant) -> (Vec<Served<'p>>, Vec<Use>) {
        let (mut served, mut uses) = (Vec::new(), Vec::new());
        if plant.returns {
            let keeps = if self.return_sites.landings.may_be_at_slot(plant.at) {
                Keeps::EntryReturns
            } else {
                Keeps::Returns
            };
            served.push(Served::Returns(plant.at));
            uses.push(self.usage(None, keeps));
        }
        for (probe, ip) in &plant.probes {
            if let Some(keeps) = probe.kept_by_detour() {
                let filter = probe.filter.as_ref().map(|filtered| &filtered.filter);
                served.push(Served::Probe(probe, *ip));
                uses.push(self.usage(filter, keeps));
            }
        }
        self.choose_parts(plant.at, &served, &mut uses);
        (served, uses)
    }

    fn usage(&self, filter: Option<&Filter>, keeps: Keeps) -> Use {
        let slide = self.running.slide().unwrap_or(0);
        let kept = self.running.kernel.processors();
        let from_gs = |kept: Option<PerCpu>| Some(kept?.from_gs(slide));
        Use {
            filter: filter.cloned(),
            keeps,
            when_full: self.records.when_full(),
            processor: Processor {
                number: from_gs(kept.number),
                task: from_gs(kept.task),
                // A count without a number of the task stays the same part when the task has been found.
                fields: if reads_task_members(filter, keeps) {
                    self.tasks.fields()
                } else {
                    None
                },
            },
            plant: self.running.planter.byte().value(),
            index: 0,
        }
    }

    /// Gives each probe its part at `site`, or a part of no other probe.
    fn choose_parts(&self, site: Gva, served: &[Served<'_>], uses: &mut [Use]) {
        let of = |usage: &Use, index| {
            let usage = Use {
                index,
                ..usage.clone()
            };
            (self.detour.part(site, &usage), usage)
        };
        let (mut decided, mut without) = (Vec::new(), Vec::new());
        for (number, served) in served.iter().enumerate() {
            let Served::Probe(probe, _) = served else {
                continue;
            };
            let mut made = (0..).map_while(|index| {
                let (part, usage) = of(&uses[number], index);
                Some((part?, usage))
            });
            match made.find(|(part, _)| self.records.is_owner(*part, probe)) {
                Some((_, usage)) => {
                    uses[number] = usage;
                    decided.push(number);
                }
                None => without.push(number),
            }
        }
        for number in without {
            let free = (0..)
                .map(|index| of(&uses[number], index))
                .find(|(part, usage)| {
                    let is_taken = decided.iter().any(|other| uses[*other] == *usage);
                    !is_taken && part.is_none_or(|part| self.records.has_no_owner(part))
                });
            if let Some((_, usage)) = free {
                uses[number] = usage;
            }
            decided.push(number);
        }
    }

    /// Assigns `part` to `served`. The other vCPUs are paused.
    pub(crate) fn serve(&self, served: Served<'_>, part: Part) -> Result<(), GuestError> {
        match served {
            Served::Probe(probe, ip) => {
                let before = self.records.set_owner(part.part_number, probe, ip);
                if let Some(words) = part.words {
                    // The part's former probe stops counting there.
                    if let Some(before) = before {
                        before.stop_counting_in(&words);
                    }
                    probe.count_in(words)?;
                }
            }
            Served::Returns(at) => self.records.set_returns(part.part_number, at),
        }
        Ok(())
    }
}
