//! Resolves tracepoints to the jump labels at which the kernel passes them.

use std::sync::Arc;

use events::AwaitsModule;
use introspect::glob_matches;
use introspect::tracepoints::{Tracepoint, TracepointSite, TracepointVariable, Tracepoints};
use manifest::{Location, ProbeSpec};

use super::tracepoint_site::{MAX_SITES, place_of};
use super::{NEAR_NAMES, Place, Refusal, ResolveProblem, Resolved};
use crate::kernel::Kernel;

/// The sites of the tracepoints that `spec` means, in the kernel without its modules. If there are none, the probe waits for a module.
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
    let has_modules = kernel.modules().is_ok();
    let named: Vec<(&str, &Tracepoint)> = match &spec.location {
        Location::Symbol { name, .. } => match known.get(name) {
            Some(tracepoint) => vec![(name, tracepoint)],
            None if has_modules && may_be_in_module(known, name) => Vec::new(),
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
        Location::Line { .. } | Location::Inlined(_) | Location::Data(_) | Location::Program(_) => {
            return Err(ResolveProblem::NoDebugInfo);
        }
    };
    // The sites are counted first: a broken file may have a million sites for each of many events.
    let number = named.iter().map(|(_, tracepoint)| tracepoint.sites.len());
    let spec_text = || spec.to_string();
    match number.fold(0, usize::saturating_add) {
        0 if has_modules => Ok(vec![Resolved {
            name: spec_text().into(),
            place: Err(AwaitsModule { spec: spec_text() }.into()),
        }]),
        0 => Err(ResolveProblem::NoTracepointSite { name: spec_text() }),
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
        let place = place_of_kernel(kernel, &tracepoint.variable, site);
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

fn place_of_kernel(
    kernel: &Kernel,
    variable: &TracepointVariable,
    site: &TracepointSite,
) -> Result<Place, Refusal> {
    let unsuitable = |problem: ResolveProblem| Refusal::Unsuitable(problem.to_string());
    let within = kernel.symbols().resolve(site.at);
    let within = within.ok_or_else(|| unsuitable(ResolveProblem::NotCode { address: site.at }))?;
    place_of(kernel, &within.symbol, within.offset, variable, site)
}

/// Whether a tracepoint that the kernel proper does not have may be one of a module: the kernel has neither the group, nor the name in another
/// group, so the name is no mistake in either.
fn may_be_in_module(known: &Tracepoints, wanted: &str) -> bool {
    let Some((group, name)) = wanted.split_once(':') else {
        return false;
    };
    let is_near = |known: &str| {
        known
            .split_once(':')
            .is_some_and(|(of, known)| of == group || known == name)
    };
    !known.iter().any(|(known, _)| is_near(known))
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
