//! The site of a tracepoint, in the kernel proper or in a module.

use address::Gva;
use introspect::Symbol;
use introspect::tracepoints::{TracepointSite, TracepointVariable};

use super::place::at_exact_offset;
use super::{Place, Refusal, ResolveProblem};
use crate::arguments::ArgumentSource;
use crate::code::KernelCode;

/// The reason against a tracepoint whose site may not be reached: its count of 0 would say nothing.
const PREPARED: &str = "the kernel calls a function when the guest switches this tracepoint on, and may not pass it before; for system calls, write syscall:NAME";
/// Stock kernels have some thousand sites. The check of each reads its function from the beginning.
pub(super) const MAX_SITES: usize = 10_000;

/// The place of `site`, `offset` bytes into the function `symbol`.
pub(super) fn place_of(
    text: &dyn KernelCode,
    symbol: &Symbol,
    offset: u64,
    variable: &TracepointVariable,
    site: &TracepointSite,
) -> Result<Place, Refusal> {
    if variable.is_prepared {
        return Err(Refusal::Unsuitable(PREPARED.to_owned()));
    }
    let unsuitable = |problem: ResolveProblem| Refusal::Unsuitable(problem.to_string());
    let mut place = at_exact_offset(text, symbol, offset).map_err(unsuitable)??;
    let distance = |to: Gva| to.0.wrapping_sub(site.at.0).cast_signed();
    place.arguments = ArgumentSource::Block {
        block: distance(site.block),
        funcs: distance(variable.funcs),
    };
    Ok(place)
}
