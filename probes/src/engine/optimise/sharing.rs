//! Probes that share a site: one detour serves all of them, with a part for each.
//!
//! ```text
//!  site ── jmp ──▶ ┌ part of kprobe:f, counted ──────────┐
//!                  │ part of kprobe:f, told as an event  │── exit, no room ──▶ VMM: this hit ──┐
//!                  │ part of kretprobe:f                 │ ◀───────────── RIP := next part ────┘
//!                  │ displaced instructions, jump back   │
//!                  └─────────────────────────────────────┘
//! ```
//!
//! Each part says by its number, in records and by the place of its exit, whose hit it is, and knows nothing of the others. So
//! a hit that exits is that of one part, and the parts behind it are executed when the VMM has handled it.
//!
//! A part belongs to the site and to a probe, not to one detour. When a probe comes to the site or goes, another detour takes
//! over, which has the parts of the probes that stay: a task in the detour before counts and records for them.

use std::sync::Arc;

use introspect::{Gva, PerCpu};

use super::Engine;
use crate::detour::{Keeps, Part, Processor, Use};
use crate::guest::GuestError;
use crate::hit::Plant;
use crate::program::Filter;
use crate::registry::{Probe, Purpose};

/// For what a part of a detour works.
#[derive(Clone, Copy, Debug)]
pub(super) enum Served<'p> {
    /// The calls that return there.
    Returns(Gva),
    /// A probe, with the address that it is about.
    Probe(&'p Arc<Probe>, Gva),
}

/// Why each hit of a plant has to exit, whatever its instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Hindrance<'p> {
    /// No detour can do what this probe wants.
    #[error("`{0}` is at the same place, and its hits exit")]
    Probe(&'p str),
    /// A milestone.
    #[error("hyprobe itself has a plant at the same place, at `{0}`, whose hits exit")]
    Milestone(&'p str),
    /// Returns are to be reported to a handler.
    #[error("calls that are followed return to the same place, and a handler is called at returns")]
    Returns,
    /// More probes than one detour serves.
    #[error("{0} probes are at the same place: a detour serves {MAX_SERVED} at the most")]
    TooMany(usize),
}

/// What is done for each probe is chosen and written with all vCPUs paused.
const MAX_SERVED: usize = 16;

/// Why the hits of the probes at `plant` exit that a detour could serve; `None`: they do not.
pub(super) fn set_unoptimised(plant: &Plant, why: Option<&str>) {
    for (probe, _) in &plant.probes {
        if probe.kept_by_detour().is_some() {
            probe.set_optimised(why.is_none());
            probe.set_unoptimised(why.map(str::to_owned));
        }
    }
}

impl Engine {
    /// Why no detour can serve `plant`, if none can. Asked at every hit.
    pub(super) fn hindrance<'p>(&self, plant: &'p Plant) -> Option<Hindrance<'p>> {
        if plant.returns && self.return_sites.must_exit() {
            return Some(Hindrance::Returns);
        }
        if plant.probes.len() > MAX_SERVED {
            return Some(Hindrance::TooMany(plant.probes.len()));
        }
        let mut probes = plant.probes.iter().map(|(probe, _)| probe);
        let probe = probes.find(|probe| probe.kept_by_detour().is_none())?;
        Some(match probe.purpose {
            Purpose::Milestone(_) => Hindrance::Milestone(&probe.name),
            _ => Hindrance::Probe(&probe.name),
        })
    }

    /// What is at `plant` has changed: says why the hits of probes exit that a detour could serve, were it not for another
    /// probe.
    pub(in crate::engine) fn report_hindrance(&self, plant: &Plant) {
        if !self.is_optimising() {
            return;
        }
        if let Some(hindrance) = self.hindrance(plant) {
            set_unoptimised(plant, Some(&hindrance.to_string()));
        } else if plant.optimising.is_open() {
            for (probe, _) in &plant.probes {
                probe.set_unoptimised(None);
            }
        }
    }

    /// For what a detour works in the place of `plant`, in the order in which an exit would report it, and what it does for
    /// each. There is no [`Hindrance`].
    pub(super) fn served<'p>(&self, plant: &'p Plant) -> (Vec<Served<'p>>, Vec<Use>) {
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
        let slide = self.slide().unwrap_or(0);
        let kept = self.kernel.processors();
        let from_gs = |kept: Option<PerCpu>| Some(kept?.from_gs(slide));
        Use {
            filter: filter.cloned(),
            keeps,
            when_full: self.records.when_full(),
            processor: Processor {
                number: from_gs(kept.number),
                task: from_gs(kept.task),
            },
            plant: self.planter.byte().value(),
            index: 0,
        }
    }

    /// Gives each probe the part that it has at `site`, or one that is no other probe's.
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

    /// `part` works for `served` from now on. The other vCPUs are paused.
    pub(super) fn serve(&self, served: Served<'_>, part: Part) -> Result<(), GuestError> {
        match served {
            Served::Probe(probe, ip) => {
                let before = self.records.set_owner(part.who, probe, ip);
                if let Some(words) = part.words {
                    // The probe that had the part before counts in it no more.
                    if let Some(before) = before {
                        before.stop_counting_in(&words);
                    }
                    probe.count_in(words)?;
                }
            }
            Served::Returns(at) => self.records.set_returns(part.who, at),
        }
        Ok(())
    }
}
