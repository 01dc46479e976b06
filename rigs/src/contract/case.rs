//! What is run, and how it is told that it went wrong.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Mutex, PoisonError};

use probes::PlantByte;

use super::bench::{Bench, Done, Here};

/// What is planted in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plants {
    /// Nothing: how the guest fares without probes.
    Nothing,
    /// Each byte in turn.
    Each,
    /// What the engine chooses: the case is not about plants.
    Chosen,
}

/// One thing that is promised, tried with the test guest.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name, the first part of what it is called in the lines.
    pub name: &'static str,
    /// What is planted.
    pub plants: Plants,
    /// Numbers of vCPUs.
    pub cpus: &'static [u8],
    /// Panics when the promise is not kept.
    pub body: fn(&Here<'_>),
}

/// A case with what is planted and how many vCPUs there are.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The case.
    pub case: &'static Case,
    /// `None`: nothing, or what the engine chooses.
    pub plant: Option<PlantByte>,
    /// Number of vCPUs.
    pub cpus: u8,
}

impl Case {
    pub(super) const fn new(
        name: &'static str,
        plants: Plants,
        cpus: &'static [u8],
        body: fn(&Here<'_>),
    ) -> Self {
        Self {
            name,
            plants,
            cpus,
            body,
        }
    }

    /// Everything in which it is run.
    pub fn variants(&'static self) -> impl Iterator<Item = Variant> {
        let plants: &[Option<PlantByte>] = match self.plants {
            Plants::Nothing | Plants::Chosen => &[None],
            Plants::Each => &[Some(PlantByte::Port), Some(PlantByte::Int3)],
        };
        plants.iter().flat_map(move |plant| {
            self.cpus.iter().map(move |cpus| Variant {
                case: self,
                plant: *plant,
                cpus: *cpus,
            })
        })
    }
}

/// As it is called in the names of cases.
pub(super) const fn word(plant: PlantByte) -> &'static str {
    match plant {
        PlantByte::Port => "port",
        PlantByte::Int3 => "int3",
    }
}

/// Why a case cannot be run.
pub(super) fn not_delivered(plant: PlantByte) -> String {
    let planted = match plant {
        PlantByte::Port => "port writes",
        PlantByte::Int3 => "int3",
    };
    format!("this KVM does not hand {planted} of ring 0 to the host")
}

impl Variant {
    /// As it is called in the lines: `case/planted/vCPUs`.
    #[must_use]
    pub fn name(&self) -> String {
        let planted = match (self.plant, self.case.plants) {
            (Some(plant), _) => word(plant),
            (None, Plants::Nothing) => "none",
            (None, _) => "auto",
        };
        format!("{}/{planted}/{}", self.case.name, self.cpus)
    }

    /// Runs it. `None`: this KVM does not deliver what it is about, or the guest fares no better without probes. The
    /// text says what was counted, or what is wrong.
    #[must_use]
    pub fn attempt(&self, bench: &Bench) -> (Option<bool>, String) {
        if let Some(plant) = self.plant.filter(|plant| !bench.delivers(*plant)) {
            return (None, not_delivered(plant));
        }
        let here = Here::new(bench, self.plant, self.cpus);
        match attempt(|| (self.case.body)(&here)) {
            Ok(()) => (Some(true), counted(&here.done())),
            Err(wrong) if self.case.plants == Plants::Nothing => (Some(false), wrong),
            Err(wrong) => {
                let tried = here.done().clone();
                let unprobed = |done: &Done| here.guest(&done.cmdline).with([]).run().assert_good();
                match attempt(|| tried.iter().for_each(unprobed)) {
                    Ok(()) => (Some(false), wrong),
                    Err(without) => (None, format!("fails without probes too: {without}")),
                }
            }
        }
    }
}

/// Runs what panics when something is wrong, and gives what the first to panic said, on whatever thread.
pub(crate) fn attempt(body: impl FnOnce()) -> Result<(), String> {
    let said: Arc<Mutex<Option<String>>> = Arc::default();
    let before = take_hook();
    let to = Arc::clone(&said);
    set_hook(Box::new(move |panic| {
        let words = panic.payload_as_str().unwrap_or("a panic without words");
        let place = panic.location().map_or(String::new(), |place| {
            let file = place.file().rsplit('/').next().unwrap_or_default();
            format!(" ({file}:{})", place.line())
        });
        let mut said = to.lock().unwrap_or_else(PoisonError::into_inner);
        said.get_or_insert(format!("{}{place}", one_line(words)));
    }));
    let result = catch_unwind(AssertUnwindSafe(body));
    set_hook(before);
    let said = said.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (result, said) {
        // A handler's panic is on a vCPU's thread, and the run has only failed by it.
        (Ok(()), None) => Ok(()),
        (_, said) => Err(said.unwrap_or_else(|| "a panic that said nothing".to_owned())),
    }
}

/// So many bytes of what is wrong are told.
const TOLD_BYTES: usize = 600;

fn one_line(text: &str) -> String {
    let mut line = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > TOLD_BYTES {
        let end = line.floor_char_boundary(TOLD_BYTES);
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Probes, hits, and how hits got past.
fn counted(done: &[Done]) -> String {
    let probes: Vec<_> = done
        .iter()
        .filter_map(|done| done.summary.as_ref())
        .flat_map(|summary| &summary.probes)
        .collect();
    let hits: u64 = probes.iter().map(|probe| probe.hits).sum();
    let exits: u64 = probes.iter().map(|probe| probe.exits).sum();
    let mut tiers: BTreeMap<String, usize> = BTreeMap::new();
    for tier in probes.iter().filter_map(|probe| probe.tier) {
        *tiers.entry(format!("{tier:?}").to_lowercase()).or_default() += 1;
    }
    let tiers: String = tiers
        .iter()
        .map(|(tier, count)| format!(", {count} {tier}"))
        .collect();
    format!("{} probes{tiers}, {hits} hits, {exits} exits", probes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_panic_is_what_is_told() {
        let result = attempt(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| panic!("a\n  handler's"));
            });
        });
        let said = result.expect_err("it panicked");
        assert!(said.starts_with("a handler's (case.rs:"), "{said}");
        assert_eq!(attempt(|| ()), Ok(()));
    }
}
