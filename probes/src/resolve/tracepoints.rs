//! Resolves tracepoints to the jump labels at which the kernel passes them.

use std::sync::Arc;

use introspect::glob_matches;
use introspect::tracepoints::{Tracepoint, TracepointSite, Tracepoints};
use manifest::{Location, ProbeSpec};

use super::{NEAR_NAMES, Refusal, ResolveProblem, Resolved, place};
use crate::arguments::ArgumentSource;
use crate::kernel::Kernel;

/// The reason against a tracepoint whose site may not be reached: its count of 0 would say nothing.
const PREPARED: &str = "the kernel calls a function when the guest switches this tracepoint on, and may not pass it before; for system calls, write syscall:NAME";
/// Stock kernels have some thousand sites. The check of each reads its function from the beginning.
const MAX_SITES: usize = 10_000;

/// The sites of the tracepoints that `spec` means.
pub(super) fn resolve(kernel: &Kernel, spec: &ProbeSpec) -> Result<Vec<Resolved>, ResolveProblem> {
    let known = kernel
        .tracepoints()
        .map_err(|why| ResolveProblem::NoTracepoints {
            why: format!("it has no type information (BTF): {why}"),
        })?;
    if known.iter().next().is_none() {
        return Err(ResolveProblem::NoTracepoints {
            why: "its symbols do not name them (CONFIG_TRACEPOINTS, CONFIG_KALLSYMS_ALL)"
                .to_owned(),
        });
    }
    let named: Vec<(&str, &Tracepoint)> = match &spec.location {
        Location::Symbol { name, .. } => match known.get(name) {
            Some(tracepoint) => vec![(name, tracepoint)],
            None => {
                return Err(ResolveProblem::NoTracepoint {
                    name: name.clone(),
                    near: near_names(known, name),
                });
            }
        },
        Location::Glob(pattern) => {
            let all = known.iter();
            all.filter(|(name, _)| glob_matches(pattern, name))
                .collect()
        }
        Location::Address(address) => {
            return Err(ResolveProblem::NotCode { address: *address });
        }
        Location::Line { .. } | Location::Inlined(_) => {
            return Err(ResolveProblem::NoDebugInfo);
        }
    };
    // The sites are counted first: a broken file may have a million sites for each of many events.
    let number = named.iter().map(|(_, tracepoint)| tracepoint.sites.len());
    match number.fold(0, usize::saturating_add) {
        0 => Err(ResolveProblem::NoTracepointSite {
            name: spec.to_string(),
        }),
        MAX_SITES.. => Err(ResolveProblem::TooMany { most: MAX_SITES }),
        _ => Ok(named
            .into_iter()
            .flat_map(|(name, tracepoint)| sites(kernel, spec, name, tracepoint))
            .collect()),
    }
}

/// A probe for each site of `tracepoint`. If there are several, the names end with the sites.
fn sites(
    kernel: &Kernel,
    spec: &ProbeSpec,
    name: &str,
    tracepoint: &Tracepoint,
) -> impl Iterator<Item = Resolved> {
    let is_alone = tracepoint.sites.len() == 1;
    let kind = spec.kind.keyword();
    let resolved = move |site: &TracepointSite| {
        let place = place_of(kernel, tracepoint, site);
        let name: Arc<str> = if is_alone {
            format!("{kind}:{name}").into()
        } else {
            match kernel.symbols().resolve(site.at) {
                Some(symbol) => format!("{kind}:{name}@{symbol}").into(),
                None => format!("{kind}:{name}@{}", site.at).into(),
            }
        };
        Resolved { name, place }
    };
    tracepoint.sites.iter().map(resolved)
}

fn place_of(
    kernel: &Kernel,
    tracepoint: &Tracepoint,
    site: &TracepointSite,
) -> Result<place::Place, Refusal> {
    if tracepoint.variable.is_prepared {
        return Err(Refusal::Unsuitable(PREPARED.to_owned()));
    }
    let unsuitable = |problem: ResolveProblem| Refusal::Unsuitable(problem.to_string());
    let within = kernel.symbols().resolve(site.at);
    let within = within.ok_or_else(|| unsuitable(ResolveProblem::NotCode { address: site.at }))?;
    let found = place::at_exact_offset(kernel, &within.symbol, within.offset);
    let mut place = found.map_err(unsuitable)??;
    let distance = |to: address::Gva| to.0.wrapping_sub(site.at.0).cast_signed();
    place.arguments = ArgumentSource::Block {
        block: distance(site.block),
        funcs: distance(tracepoint.variable.funcs),
    };
    Ok(place)
}

/// Tracepoints of the same name in another group, and tracepoints whose name contains the given name.
fn near_names(known: &Tracepoints, wanted: &str) -> Vec<String> {
    let name = wanted.split_once(':').map_or(wanted, |(_, name)| name);
    let alike = |(known, tracepoint): (&str, &Tracepoint)| {
        tracepoint.name.contains(name).then(|| known.to_owned())
    };
    known.iter().filter_map(alike).take(NEAR_NAMES).collect()
}

/// What the user of a probe at the tracepoint of `spec` must know: the places where the kernel only asks whether it is on are no sites.
pub(crate) fn remark(kernel: &Kernel, spec: &ProbeSpec) -> Option<String> {
    let Location::Symbol { name, .. } = &spec.location else {
        return None;
    };
    let questions = kernel.tracepoints().ok()?.get(name)?.questions;
    (questions > 0).then(|| {
        format!(
            "at {questions} places the kernel asks whether the guest has this tracepoint on, and may pass it only if so: those are no hits"
        )
    })
}
