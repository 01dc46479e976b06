//! Resolves tracepoints to the jump labels in a loaded module.
//!
//! A module's code passes tracepoints of the module, of the kernel, and of other modules. The kernel's own are found here only if
//! the kernel without its modules does not pass them.

use std::sync::Arc;

use address::Gva;
use introspect::tracepoints::{ModuleTracepoints, TracepointSite, TracepointVariable};
use introspect::{Symbol, glob_matches};
use manifest::{Location, ProbeSpec};

use super::tracepoint_site::{MAX_SITES, place_of};
use super::{Refusal, ResolveProblem, Resolved};
use crate::module::ModuleCode;

/// The blocks of a module take some ten thousand instructions. The guest waits while they are decoded.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// A tracepoint that modules may pass, at run-time addresses.
#[derive(Clone, Debug)]
pub(crate) struct PassedTracepoint {
    /// The group and the name.
    pub(crate) name: String,
    /// The `trace_event_call`, for the kernel proper at its link-time address.
    pub(crate) event: Gva,
    pub(crate) variable: TracepointVariable,
    /// The address of the `struct module` of the module that defines the tracepoint; `None` for the kernel proper.
    pub(crate) module: Option<Gva>,
}

/// A site in a module.
#[derive(Clone, Debug)]
pub(crate) struct ModuleSite<'t> {
    pub(crate) resolved: Resolved,
    pub(crate) tracepoint: &'t PassedTracepoint,
}

impl ModuleSite<'_> {
    /// The name of the site's probe.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.resolved.name)
    }
}

/// The sites in the module `code` of those `tracepoints` that `spec` means. `labels` has the module's jump labels.
///
/// # Errors
///
/// If there are too many.
pub(crate) fn in_module<'t>(
    code: &ModuleCode<'_>,
    labels: &ModuleTracepoints,
    tracepoints: &'t [PassedTracepoint],
    spec: &ProbeSpec,
) -> Result<Vec<ModuleSite<'t>>, ResolveProblem> {
    let is_meant = |tracepoint: &&PassedTracepoint| match &spec.location {
        Location::Symbol { name, .. } => *name == tracepoint.name,
        Location::Glob(pattern) => glob_matches(pattern, &tracepoint.name),
        Location::Address(_)
        | Location::Line { .. }
        | Location::Inlined(_)
        | Location::Data(_)
        | Location::Program(_) => false,
    };
    let mut read = |at: Gva, buf: &mut [u8]| {
        let held = code.bytes(at, buf.len() as u64);
        let is_whole = held.len() == buf.len();
        if is_whole {
            buf.copy_from_slice(&held);
        }
        is_whole
    };
    let mut found = Vec::new();
    let mut left = MAX_INSTRUCTIONS;
    for tracepoint in tracepoints.iter().filter(is_meant) {
        let sites = labels.sites(&tracepoint.variable, &mut read, &mut left);
        if left == 0 {
            return Err(ResolveProblem::TooMany { most: MAX_SITES });
        }
        // The only site of the module that defines the tracepoint needs no other name.
        let is_alone = sites.len() == 1 && tracepoint.module == Some(code.module.address());
        for site in sites {
            if found.len() == MAX_SITES {
                return Err(ResolveProblem::TooMany { most: MAX_SITES });
            }
            let resolved = resolved(code, spec, tracepoint, &site, is_alone);
            found.extend(resolved.map(|resolved| ModuleSite {
                resolved,
                tracepoint,
            }));
        }
    }
    Ok(found)
}

/// The probe at `site`; `None` if the site is in no function of the module.
fn resolved(
    code: &ModuleCode<'_>,
    spec: &ProbeSpec,
    tracepoint: &PassedTracepoint,
    site: &TracepointSite,
    is_alone: bool,
) -> Option<Resolved> {
    let symbol = function_at(code.module.symbols(), site.at)?;
    let offset = site.at.offset_from(symbol.address)?;
    let (kind, name) = (spec.kind.keyword(), &tracepoint.name);
    let name: Arc<str> = if is_alone {
        format!("{kind}:{name}").into()
    } else {
        let module = code.module.name();
        format!("{kind}:{name}@{module}:{}+{offset:#x}", symbol.name).into()
    };
    let place: Result<_, Refusal> = place_of(code, symbol, offset, &tracepoint.variable, site);
    Some(Resolved { name, place })
}

/// The function that holds `at`, among `symbols` in address order.
fn function_at(symbols: &[Symbol], at: Gva) -> Option<&Symbol> {
    let after = symbols.partition_point(|symbol| symbol.address <= at);
    let before = symbols.get(..after)?.iter().rev();
    let holds = |symbol: &&Symbol| {
        let offset = at.offset_from(symbol.address);
        symbol.is_text() && offset.is_some_and(|offset| offset < symbol.size)
    };
    // Several symbols may begin at an address, and a label may be within a function.
    before.take(MAX_LABELS).find(holds)
}

/// The most symbols between a site and the beginning of its function.
const MAX_LABELS: usize = 64;
