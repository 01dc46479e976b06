//! Resolves tracepoints to the jump labels at which the kernel passes them.

use std::sync::Arc;

use introspect::glob_matches;
use introspect::tracepoints::{Tracepoint, TracepointSite, Tracepoints};
use manifest::{Location, ProbeSpec};

use super::{MAX_GLOB_MATCHES, NEAR_NAMES, Refusal, ResolveProblem, Resolved, place};
use crate::arguments::ArgumentSource;
use crate::kernel::Kernel;

/// The sites of the tracepoints that `spec` means.
pub(super) fn resolve(kernel: &Kernel, spec: &ProbeSpec) -> Result<Vec<Resolved>, ResolveProblem> {
    let known = kernel
        .tracepoints()
        .map_err(|why| ResolveProblem::NoTracepoints {
            why: why.to_string(),
        })?;
    let mut found = Vec::new();
    match &spec.location {
        Location::Symbol { name, .. } => match known.get(name) {
            Some(tracepoint) => found.extend(sites(kernel, spec, name, tracepoint)),
            None => {
                return Err(ResolveProblem::NoTracepoint {
                    name: name.clone(),
                    near: near_names(known, name),
                });
            }
        },
        Location::Glob(pattern) => {
            let all = known.iter();
            for (name, tracepoint) in all.filter(|(name, _)| glob_matches(pattern, name)) {
                found.extend(sites(kernel, spec, name, tracepoint));
            }
        }
        Location::Address(address) => {
            return Err(ResolveProblem::NotCode { address: *address });
        }
    }
    match found.len() {
        0 => Err(ResolveProblem::NoTracepointSite {
            name: spec.to_string(),
        }),
        MAX_GLOB_MATCHES.. => Err(ResolveProblem::TooMany {
            most: MAX_GLOB_MATCHES,
        }),
        _ => Ok(found),
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
    let unsuitable = |problem: ResolveProblem| Refusal::Unsuitable(problem.to_string());
    let within = kernel.symbols().resolve(site.at);
    let within = within.ok_or_else(|| unsuitable(ResolveProblem::NotCode { address: site.at }))?;
    let found = place::at_exact_offset(kernel, &within.symbol, within.offset);
    let mut place = found.map_err(unsuitable)??;
    let distance = |to: address::Gva| to.0.wrapping_sub(site.at.0).cast_signed();
    place.arguments = ArgumentSource::Block {
        block: distance(site.block),
        funcs: distance(tracepoint.funcs),
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
