//! The functions of a kernel, in the order of a sweep.

use std::collections::{BTreeMap, BTreeSet};

use address::Gva;
use introspect::int3::HANDLER;
use manifest::{Action, Location, ProbeConfig, ProbeKind, ProbeSpec};
use probes::{Kernel, Place, PlantTime, Refusal, Resolved, resolve};
use vmm::boot::BootMethod;

use super::mode::{Configuration, HitAction, Site};
use super::outcome::FunctionId;
use crate::busy::random::Random;

/// A function, and the specification of its probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// The probed instruction of an entry probe, at the link-time address.
    pub(super) entry: Gva,
    spec: ProbeSpec,
    /// Whether each boot executes the probed instruction while planted.
    pub(super) runs_at_boot: bool,
}

/// Functions in the batch of the handler of `int3`, besides the handler.
const BESIDE_HANDLER: usize = 99;

/// The functions to sweep.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection<'a> {
    /// The seed for the order of functions and the choice of instructions.
    pub(super) seed: u64,
    /// The number of functions to take after the shuffle; all if `None`.
    pub(super) sample: Option<usize>,
    /// The names of functions to sweep first, if the kernel has them.
    pub(super) with: &'a [String],
    /// Whether only the functions of `with` are swept.
    pub(super) only_with: bool,
}

/// The functions of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Functions {
    functions: Vec<Function>,
    /// The number of functions in front that were requested by name.
    asked_for: usize,
    /// Number of functions of the kernel, selected or not.
    pub(super) of: usize,
    /// Functions that cannot be probed, by reason. These are not booted.
    pub(super) refused: BTreeMap<String, u64>,
}

impl Functions {
    /// The functions of `kernel`, with probes according to `configuration`.
    pub(super) fn of(
        kernel: &Kernel,
        configuration: Configuration,
        selection: &Selection<'_>,
    ) -> Result<Self, String> {
        let glob = ProbeSpec {
            kind: ProbeKind::Kprobe,
            module: None,
            location: Location::Glob("*".to_owned()),
        };
        let all = resolve(kernel, &glob, 0).map_err(errors::chain)?;
        let mut entries: BTreeMap<Gva, String> = BTreeMap::new();
        let mut unresolved: BTreeMap<String, u64> = BTreeMap::new();
        for found in all {
            let name = found.name.trim_start_matches("kprobe:").to_owned();
            let place = match found.place {
                Err(refusal @ Refusal::Int3Handler) => named(kernel, &name).unwrap_or(Err(refusal)),
                place => place,
            };
            match place {
                Ok(place) => {
                    entries.entry(place.ip).or_insert(name);
                }
                Err(refusal) => {
                    *unresolved
                        .entry(reason(&refusal.to_string(), &name))
                        .or_default() += 1
                }
            }
        }
        let of = entries.len();
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for name in entries.values() {
            *names.entry(name).or_default() += 1;
        }
        let chosen = select(&entries, selection);
        let mut functions = Vec::new();
        let mut refused = if selection.sample.is_none() && !selection.only_with {
            unresolved
        } else {
            BTreeMap::new()
        };
        for entry in chosen {
            let name = &entries[&entry];
            let is_unique = names[&**name] == 1;
            match spec(
                kernel,
                configuration,
                entry,
                name,
                is_unique,
                selection.seed,
            ) {
                Ok((spec, resolved)) => functions.push(Function {
                    name: name.clone(),
                    entry,
                    spec,
                    runs_at_boot: name == HANDLER && resolved.iter().all(is_planted_at_once),
                }),
                Err(why) => *refused.entry(reason(&why, name)).or_default() += 1,
            }
        }
        let is_asked_for = |function: &&Function| selection.with.contains(&function.name);
        Ok(Self {
            asked_for: functions.iter().take_while(is_asked_for).count(),
            functions,
            of,
            refused,
        })
    }

    #[cfg(test)]
    pub(super) fn named(names: &[&str]) -> Self {
        let function = |name: &&str| Function {
            name: (*name).to_owned(),
            entry: Gva(0),
            spec: ProbeSpec {
                kind: ProbeKind::Kprobe,
                module: None,
                location: Location::Symbol {
                    name: (*name).to_owned(),
                    offset: 0,
                },
            },
            runs_at_boot: *name == HANDLER,
        };
        Self {
            functions: names.iter().map(function).collect(),
            asked_for: 0,
            of: names.len(),
            refused: BTreeMap::new(),
        }
    }

    /// The specifications of the probes, one a line, in the order of the functions.
    pub(super) fn specifications(&self) -> String {
        let mut text = String::new();
        for function in &self.functions {
            text.push_str(&function.spec.to_string());
            text.push('\n');
        }
        text
    }

    pub(super) fn len(&self) -> usize {
        self.functions.len()
    }

    pub(super) fn get(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(usize::try_from(id.0).ok()?)
    }

    /// The name, with the address if several functions have the name.
    pub(super) fn name(&self, id: FunctionId) -> String {
        let Some(function) = self.get(id) else {
            return format!("function {}", id.0);
        };
        match &function.spec.location {
            Location::Symbol { name, offset: 0 } => name.clone(),
            Location::Symbol { name, offset } => format!("{name}+{offset:#x}"),
            _ => format!(
                "{} at {}",
                function.name,
                function.spec.to_string().replace("kprobe:", "")
            ),
        }
    }

    /// All functions, in batches of at most `most`. Functions requested by name have batches of their own. So has the handler of
    /// `int3`, with a few others: while the handler is probed, no `int3` replaces their plants.
    pub(super) fn batches(&self, most: usize) -> Vec<Vec<FunctionId>> {
        let ids: Vec<FunctionId> = (0..self.functions.len())
            .filter_map(|index| u32::try_from(index).ok())
            .map(FunctionId)
            .collect();
        let (asked_for, others) = ids.split_at(self.asked_for.min(ids.len()));
        let most = most.max(1);
        let mut others = others.to_vec();
        let is_handler = |id: &FunctionId| self.get(*id).is_some_and(|it| it.name == HANDLER);
        let with_handler = others.iter().position(is_handler).map(|index| {
            let mut batch = vec![others.remove(index)];
            let beside = others.len().min(BESIDE_HANDLER).min(most - 1);
            batch.extend(others.drain(..beside));
            batch
        });
        let batches = asked_for.chunks(most).chain(others.chunks(most));
        let batches = batches.map(<[FunctionId]>::to_vec);
        batches.chain(with_handler).collect()
    }

    /// The probes on `set`, in its order.
    pub(super) fn probes(&self, set: &[FunctionId], action: HitAction) -> Vec<ProbeConfig> {
        set.iter()
            .filter_map(|id| self.get(*id))
            .map(|function| ProbeConfig {
                action: match action {
                    HitAction::Counted => Action::Count,
                    HitAction::Recorded => Action::Trace,
                },
                ..ProbeConfig::from(function.spec.clone())
            })
            .collect()
    }
}

/// The site of a probe on the function `name`, which a glob leaves out.
fn named(kernel: &Kernel, name: &str) -> Option<Result<Place, Refusal>> {
    let spec = ProbeSpec {
        kind: ProbeKind::Kprobe,
        module: None,
        location: Location::Symbol {
            name: name.to_owned(),
            offset: 0,
        },
    };
    let mut found = resolve(kernel, &spec, 0).ok()?;
    found.pop().map(|found| found.place)
}

/// Whether the plant is there from the guest's first instruction on: the kernel does not patch the probed instruction.
fn is_planted_at_once(resolved: &Resolved) -> bool {
    let place = resolved.place.as_ref();
    place.is_ok_and(|place| place.when == PlantTime::TextPresent)
}

/// Entries in the order of the sweep: functions requested by name first, then the others, shuffled.
fn select(entries: &BTreeMap<Gva, String>, selection: &Selection<'_>) -> Vec<Gva> {
    let wanted: BTreeSet<&str> = selection.with.iter().map(String::as_str).collect();
    let (mut chosen, mut others): (Vec<Gva>, Vec<Gva>) = entries
        .keys()
        .copied()
        .partition(|entry| wanted.contains(&*entries[entry]));
    if selection.only_with {
        return chosen;
    }
    shuffle(&mut others, &mut Random::new(selection.seed));
    others.truncate(selection.sample.unwrap_or(usize::MAX));
    chosen.extend(others);
    chosen
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for index in (1..items.len()).rev() {
        items.swap(index, random.below(index + 1));
    }
}

/// The probe of a function, if possible.
fn spec(
    kernel: &Kernel,
    configuration: Configuration,
    entry: Gva,
    name: &str,
    is_unique: bool,
    seed: u64,
) -> Result<(ProbeSpec, Vec<Resolved>), String> {
    let kind = match configuration.site {
        Site::Return => ProbeKind::Kretprobe,
        Site::Entry | Site::Boundary => ProbeKind::Kprobe,
    };
    let at = match configuration.site {
        Site::Boundary => Some(boundary(kernel, entry, seed)?),
        Site::Entry | Site::Return => None,
    };
    let location = if is_unique {
        Location::Symbol {
            name: name.to_owned(),
            offset: at.map_or(0, |(_, offset)| offset),
        }
    } else if configuration.method == BootMethod::BzImage {
        return Err("several functions have the name, and addresses move".to_owned());
    } else {
        Location::Address(at.map_or(entry, |(at, _)| at))
    };
    let spec = ProbeSpec {
        kind,
        module: None,
        location,
    };
    match resolve(kernel, &spec, 0) {
        Ok(resolved) => Ok((spec, resolved)),
        Err(error) => Err(error.problem.to_string()),
    }
}

/// An instruction of the function with the entry `entry`, and its offset: the same for the same seed.
fn boundary(kernel: &Kernel, entry: Gva, seed: u64) -> Result<(Gva, u64), String> {
    let within = kernel
        .symbols()
        .resolve(entry)
        .ok_or("no symbol is there")?;
    let starts: Vec<Gva> = kernel
        .instructions(&within.symbol)
        .map_while(Result::ok)
        .map(|decoded| decoded.at())
        .collect();
    let mut random = Random::new(seed ^ entry.0);
    // Similar seeds have similar first numbers.
    random.below(1);
    random.below(1);
    let at = starts
        .get(random.below(starts.len()))
        .ok_or("no instruction can be decoded")?;
    Ok((*at, at.0.saturating_sub(within.symbol.address.0)))
}

/// A reason without the parts that differ from function to function.
pub(super) fn reason(text: &str, name: &str) -> String {
    let text = text.replace(name, "NAME");
    let words: Vec<String> = text
        .split_whitespace()
        .map(|word| {
            let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            let is_number = bare.starts_with("0x")
                || (!bare.is_empty() && bare.bytes().all(|c| c.is_ascii_digit()));
            if is_number {
                word.replace(bare, "N")
            } else {
                word.to_owned()
            }
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> BTreeMap<Gva, String> {
        (0..count)
            .map(|at| (Gva(at * 16), format!("f{at}")))
            .collect()
    }

    fn chosen(selection: &Selection<'_>) -> Vec<u64> {
        let chosen = select(&entries(1000), selection);
        chosen.iter().map(|entry| entry.0 / 16).collect()
    }

    #[test]
    fn same_seed_gives_the_same_order_and_another_seed_another() {
        let all = |seed| {
            chosen(&Selection {
                seed,
                ..Selection::default()
            })
        };
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
        let mut sorted = all(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn handler_of_int3_is_in_a_small_batch() {
        let names: Vec<String> = (0..250).map(|n| format!("f{n}")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.insert(120, HANDLER);
        let functions = Functions::named(&names);
        let batches = functions.batches(140);
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, [140, 11, 100]);
        assert_eq!(functions.name(batches[2][0]), HANDLER);
        let mut all: Vec<u32> = batches.into_iter().flatten().map(|id| id.0).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..251));
    }

    #[test]
    fn sample_holds_the_functions_that_are_asked_for() {
        let with = ["f3".to_owned(), "f500".to_owned(), "missing".to_owned()];
        let selection = Selection {
            seed: 1,
            sample: Some(20),
            with: &with,
            only_with: false,
        };
        let sample = chosen(&selection);
        assert_eq!((sample.len(), &sample[..2]), (22, &[3, 500][..]));
        let alone = chosen(&Selection {
            only_with: true,
            ..selection
        });
        assert_eq!(alone, [3, 500]);
    }

    #[test]
    fn reasons_of_different_functions_are_alike() {
        let first = reason(
            "`vfs_read` has no instruction at 0xffffffff81000000 (12 bytes)",
            "vfs_read",
        );
        let second = reason(
            "`ip_rcv` has no instruction at 0xffffffff82000000 (7 bytes)",
            "ip_rcv",
        );
        assert_eq!(first, second);
        assert_eq!(first, "`NAME` has no instruction at N (N bytes)");
    }
}
