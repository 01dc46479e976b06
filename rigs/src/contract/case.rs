//! Cases, their variants, and the verdict on a variant.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Mutex, PoisonError};

use text::PlantByte;

use super::bench::{Bench, Done, Here};
use crate::way::Way;

/// The plants of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plants {
    /// Nothing: how the guest fares without probes.
    Nothing,
    /// Each way in turn.
    Each,
    /// Each byte in turn: the case is about the bytes, or about jumps in their place.
    Bytes,
    /// Hidden plants.
    Hidden,
    /// The engine's choice: the case is not about plants.
    Chosen,
}

/// A promise, tried with the test guest.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name: the first part of the variants' names in the lines.
    pub name: &'static str,
    /// The bytes to plant.
    pub plants: Plants,
    /// Numbers of vCPUs.
    pub cpus: &'static [u8],
    /// Panics when the promise is not kept.
    pub body: fn(&Here<'_>),
}

/// A case with a way to plant and a number of vCPUs.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The case.
    pub case: &'static Case,
    /// `None`: nothing, or the engine's choice.
    pub way: Option<Way>,
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

    /// The variants in which the case runs.
    pub fn variants(&'static self) -> impl Iterator<Item = Variant> {
        let ways: &[Option<Way>] = match self.plants {
            Plants::Nothing | Plants::Chosen => &[None],
            Plants::Hidden => &[Some(Way::HiddenPage)],
            Plants::Bytes => &[
                Some(Way::Byte(PlantByte::Port)),
                Some(Way::Byte(PlantByte::Int3)),
            ],
            Plants::Each => &[
                Some(Way::Byte(PlantByte::Port)),
                Some(Way::Byte(PlantByte::Int3)),
                Some(Way::HiddenPage),
            ],
        };
        ways.iter().flat_map(move |way| {
            self.cpus.iter().map(move |cpus| Variant {
                case: self,
                way: *way,
                cpus: *cpus,
            })
        })
    }
}

impl Variant {
    /// The name in the lines: `case/planted/vCPUs`.
    #[must_use]
    pub fn name(&self) -> String {
        let planted = match (self.way, self.case.plants) {
            (Some(way), _) => way.word(),
            (None, Plants::Nothing) => "none",
            (None, _) => "auto",
        };
        format!("{}/{planted}/{}", self.case.name, self.cpus)
    }

    /// Runs the variant. `None` if the KVM does not deliver the trap, or if the guest fails without probes, too. The text has the counts,
    /// or the error.
    #[must_use]
    pub fn attempt(&self, bench: &Bench) -> (Option<bool>, String) {
        if let Some(way) = self.way.filter(|way| !bench.delivers(*way)) {
            return (None, way.not_delivered());
        }
        let here = Here::new(bench, self.way, self.cpus);
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

/// Runs `body`, which panics on an error. Returns the message of the first panic, on any thread.
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
        // A handler panics on a vCPU's thread. The handler's message then has the cause: the run only fails.
        (Ok(()), None) => Ok(()),
        (_, said) => Err(said.unwrap_or_else(|| "a panic that said nothing".to_owned())),
    }
}

/// The maximum length of a quoted panic message, in bytes.
const QUOTED_BYTES: usize = 600;

fn one_line(text: &str) -> String {
    let mut line = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > QUOTED_BYTES {
        let end = line.floor_char_boundary(QUOTED_BYTES);
        line.truncate(end);
        line.push('…');
    }
    line
}

/// The number of probes, also by tier, and of their hits and exits.
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
    fn first_panic_is_reported() {
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
