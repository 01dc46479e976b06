//! Resolves probe specifications to sites in the kernel.
//!
//! A [`Place`] has the *probed* address and the address of the *plant*. The two differ where the kernel would notice a plant: the
//! kernel compares the bytes of a function's ftrace call before and after patching them, and complains about a plant. Between the
//! call and the instruction behind the call nothing happens that a probe could see, so the plant is on the instruction behind:
//! see `docs/planting.md`.

mod clock;
mod error;
mod functions;
pub(crate) mod module_tracepoints;
mod number;
mod place;
mod program_problem;
mod programs;
#[cfg(test)]
pub(crate) mod synthetic;
pub(crate) mod syscalls;
mod task_member;
#[cfg(test)]
mod tests;
mod tracepoint_site;
pub(crate) mod tracepoints;
mod watch_problem;
mod watched;
mod watched_in_module;
mod watched_in_task;
mod words;

use std::sync::Arc;

use address::Gva;
use events::NotLoaded;
use introspect::int3::HANDLER;
use introspect::{Symbol, glob_matches};
use manifest::{DataBase, Location, ProbeKind, ProbeSpec};

use crate::code::KernelCode;
use crate::kernel::Kernel;
use crate::module::{LoadedModule, ModuleSymbols};

pub use error::{PATTERN_HELP, ResolveError, ResolveProblem};
pub use functions::{FunctionVerdict, functions};
#[cfg(test)]
pub(crate) use number::PROBES_MAX;
pub use number::ProbeNumber;
pub(crate) use number::WORDS_MAX;
pub(crate) use place::ENDBR64;
pub use place::{MemoryOwner, Place, PlantTime, Refusal, Via};
pub use program_problem::ProgramProblem;
pub use task_member::TaskMember;
pub use watch_problem::WatchProblem;
pub(crate) use watched_in_task::in_task;
pub(crate) use words::{WORD_BYTES, words};

/// The most probes that a glob expands to.
pub(crate) const MAX_GLOB_MATCHES: usize = 100_000;
/// The most addresses of namesakes in an error.
const MAX_NAMESAKES: usize = 16;
/// The number of near names in the error for an unknown name.
const NEAR_NAMES: usize = 5;
/// Functions in the entry text that are reached by `call` and return by `ret`. The last three are one function, in 5.10.
const CALLED_ENTRY_CODE: [&str; 4] = [
    "asm_load_gs_index",
    "asm_call_on_stack",
    "asm_call_sysvec_on_stack",
    "asm_call_irq_on_stack",
];

/// A site, and the name of its probe: the specification itself, or one match of a glob.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The user's specification, or the specification of one match.
    pub name: Arc<str>,
    /// The site, or the reason against a probe.
    pub place: Result<Place, Refusal>,
}

impl Resolved {
    /// The number of words of watched data that count towards the most of an engine ([`ProbeNumber::add_words`]). Data of the module of `spec`, or of a
    /// process, counts before the module is loaded or the process is started. Per-CPU data counts as one copy.
    #[must_use]
    pub fn words(&self, spec: &ProbeSpec) -> usize {
        match &self.place {
            Ok(place) => place.words(),
            Err(Refusal::NotStarted { member }) => member.words(),
            Err(_) => words_in_module(spec),
        }
    }
}

/// The most words of the data of a module that `spec` watches; 0 for another probe.
pub(crate) fn words_in_module(spec: &ProbeSpec) -> usize {
    match (&spec.module, &spec.location) {
        (Some(_), Location::Data(data)) => words(data.bytes.map_or(0, usize::from)),
        _ => 0,
    }
}

/// Resolves `spec` to sites; sites in a module are known once the module is loaded. `slide` is the distance by which the kernel
/// has moved, and matters to plain addresses only.
///
/// # Errors
///
/// If the specification cannot be resolved: the kernel has no such symbol, or the offset is inside an instruction. A site that
/// exists but cannot be probed is a [`Refusal`] in the result.
pub fn resolve(
    kernel: &Kernel,
    spec: &ProbeSpec,
    slide: i64,
) -> Result<Vec<Resolved>, ResolveError> {
    let mut found = resolve_sites(kernel, spec, slide)?;
    if spec.kind.is_return() {
        for resolved in &mut found {
            let is_entry = |place: &Place| kernel.is_entry(place.ip) && !is_called(&place.symbol);
            if resolved.place.as_ref().is_ok_and(is_entry) {
                resolved.place = Err(Refusal::NoReturnAddress);
            }
        }
    }
    Ok(found)
}

/// Whether the entry-text function `symbol` (`name+0xoffset`) is reached by `call`.
fn is_called(symbol: &str) -> bool {
    let (name, _) = symbol.split_once('+').unwrap_or((symbol, ""));
    CALLED_ENTRY_CODE.contains(&name)
}

fn resolve_sites(
    kernel: &Kernel,
    spec: &ProbeSpec,
    slide: i64,
) -> Result<Vec<Resolved>, ResolveError> {
    let failed = |problem| ResolveError {
        spec: spec.to_string(),
        problem,
    };
    if spec.kind.is_syscall() {
        return syscalls::resolve(kernel, spec).map_err(failed);
    }
    if spec.kind == ProbeKind::Tracepoint {
        return tracepoints::resolve(kernel, spec).map_err(failed);
    }
    if spec.location.needs_debug_info() {
        return Err(failed(ResolveProblem::NoDebugInfo));
    }
    if let Some(module) = &spec.module {
        kernel.modules().map_err(|error| {
            failed(ResolveProblem::Module {
                module: module.name.clone(),
                why: error.to_string(),
            })
        })?;
        let module = module.name.clone();
        return Ok(vec![Resolved {
            name: spec.to_string().into(),
            place: Err(NotLoaded { module }.into()),
        }]);
    }
    match &spec.location {
        Location::Line { .. } | Location::Inlined(_) => Err(failed(ResolveProblem::NoDebugInfo)),
        Location::Data(data) => {
            if let DataBase::TaskMember { path, pid } = &data.base {
                let member = watched_in_task::resolve(kernel, path, *pid, data);
                let member = member.map_err(|problem| failed(problem.into()))?;
                return Ok(vec![Resolved {
                    name: spec.to_string().into(),
                    place: Err(Refusal::NotStarted { member }),
                }]);
            }
            let watched = watched::resolve(kernel, data, slide);
            Ok(vec![Resolved {
                name: spec.to_string().into(),
                place: Ok(watched.map_err(|problem| failed(problem.into()))?),
            }])
        }
        Location::Program(code) => {
            programs::check(kernel).map_err(|problem| failed(problem.into()))?;
            let path = code.path.clone();
            Ok(vec![Resolved {
                name: spec.to_string().into(),
                place: Err(Refusal::NotMapped { path }),
            }])
        }
        Location::Symbol { name, offset } => {
            let symbol = function(kernel, name).map_err(failed)?;
            let place = place::at_offset(kernel, &symbol, *offset).map_err(failed)?;
            Ok(vec![Resolved {
                name: spec.to_string().into(),
                place,
            }])
        }
        Location::Address(address) => {
            let linked = Gva(address.0.wrapping_sub(slide.cast_unsigned()));
            if !kernel.holds_code(linked) {
                return Err(failed(ResolveProblem::NotCode { address: *address }));
            }
            let within = kernel.symbols().resolve(linked);
            let Some(within) = within.filter(|within| within.symbol.is_text()) else {
                return Err(failed(ResolveProblem::NotCode { address: *address }));
            };
            let place =
                place::at_exact_offset(kernel, &within.symbol, within.offset).map_err(failed)?;
            Ok(vec![Resolved {
                name: spec.to_string().into(),
                place,
            }])
        }
        Location::Glob(pattern) => {
            let mut found = Vec::new();
            for symbol in kernel.symbols().matching(pattern) {
                if !is_function(kernel, &symbol) {
                    continue;
                }
                if found.len() == MAX_GLOB_MATCHES {
                    return Err(failed(ResolveProblem::TooMany {
                        most: MAX_GLOB_MATCHES,
                    }));
                }
                let name: Arc<str> = format!("{}:{}", spec.kind.keyword(), symbol.name).into();
                // An error for an exact name is a refusal for a glob, whose other matches are still armed.
                let place = if symbol.name == HANDLER && spec.kind == ProbeKind::Kprobe {
                    Err(Refusal::Int3Handler)
                } else {
                    place::at_offset(kernel, &symbol, 0)
                        .unwrap_or_else(|problem| Err(Refusal::Unsuitable(problem.to_string())))
                };
                found.push(Resolved { name, place });
            }
            if found.is_empty() {
                return Err(failed(ResolveProblem::NoMatch {
                    pattern: pattern.clone(),
                }));
            }
            Ok(found)
        }
    }
}

/// Resolves `spec` to sites in a loaded module.
///
/// # Errors
///
/// As for [`resolve`].
pub(crate) fn in_module(
    module: &LoadedModule,
    text: &dyn KernelCode,
    symbols: &ModuleSymbols<'_>,
    spec: &ProbeSpec,
) -> Result<Vec<Resolved>, ResolveProblem> {
    let resolved = |symbol: &Symbol, location, offset| {
        let name = with_location(spec, location);
        let place = place::at_offset(text, symbol, offset)
            .unwrap_or_else(|problem| Err(Refusal::Unsuitable(problem.to_string())));
        Resolved { name, place }
    };
    let missing = |name: &str| ResolveProblem::NotInModule {
        module: module.name().to_owned(),
        name: name.to_owned(),
    };
    let build_id = module.module().build_id().map(ToString::to_string);
    let wanted = spec.module.as_ref();
    if let Some(wanted) = wanted.filter(|wanted| !wanted.is_of_build(build_id.as_deref())) {
        return Err(ResolveProblem::OtherBuild {
            module: module.name().to_owned(),
            wanted: wanted.build.clone().unwrap_or_default(),
            build_id,
        });
    }
    match &spec.location {
        Location::Address(address) => Err(ResolveProblem::NotCode { address: *address }),
        // A program has no module.
        Location::Line { .. } | Location::Inlined(_) | Location::Program(_) => {
            Err(ResolveProblem::NoDebugInfo)
        }
        Location::Data(data) => Ok(vec![Resolved {
            name: spec.to_string().into(),
            place: Ok(watched_in_module::resolve(module.module(), symbols, data)?),
        }]),
        Location::Symbol { name, offset } => match symbols.text(name) {
            [] => Err(missing(name)),
            [symbol] => Ok(vec![resolved(symbol, spec.location.clone(), *offset)]),
            several => Err(ResolveProblem::Ambiguous {
                name: name.clone(),
                addresses: several
                    .iter()
                    .take(MAX_NAMESAKES)
                    .map(|symbol| symbol.address)
                    .collect(),
            }),
        },
        Location::Glob(pattern) => {
            let mut found = Vec::new();
            for symbol in module.symbols() {
                if !is_function(text, symbol) || !glob_matches(pattern, &symbol.name) {
                    continue;
                }
                if found.len() == MAX_GLOB_MATCHES {
                    return Err(ResolveProblem::TooMany {
                        most: MAX_GLOB_MATCHES,
                    });
                }
                let name = symbol.name.clone();
                found.push(resolved(symbol, Location::Symbol { name, offset: 0 }, 0));
            }
            if found.is_empty() {
                return Err(missing(pattern));
            }
            Ok(found)
        }
    }
}

/// The name of the probe at `location`, one match of the glob `spec`.
fn with_location(spec: &ProbeSpec, location: Location) -> Arc<str> {
    let matched = ProbeSpec {
        location,
        ..spec.clone()
    };
    matched.to_string().into()
}

fn is_function(text: &dyn KernelCode, symbol: &Symbol) -> bool {
    symbol.is_text()
        && symbol.size > 0
        && (symbol.module.is_some() == text.module().is_some())
        && text.holds_code(symbol.address)
        && !symbol.name.starts_with("__pfx_")
        && !symbol.name.starts_with("__cfi_")
        && !symbol.name.contains(".cold")
}

fn function(kernel: &Kernel, name: &str) -> Result<Symbol, ResolveProblem> {
    let all = kernel.symbols().lookup_all(name);
    if all.is_empty() {
        return Err(ResolveProblem::NoSymbol {
            name: name.to_owned(),
            near: kernel.symbols().nearest_names(name, NEAR_NAMES),
        });
    }
    let mut code = all
        .into_iter()
        .filter(|symbol| symbol.is_text() && kernel.holds_code(symbol.address));
    let Some(first) = code.next() else {
        return Err(ResolveProblem::NotAFunction {
            name: name.to_owned(),
        });
    };
    let others: Vec<Gva> = code
        .map(|symbol| symbol.address)
        .filter(|address| *address != first.address)
        .collect();
    if others.is_empty() {
        Ok(first)
    } else {
        let addresses = std::iter::once(first.address).chain(others).collect();
        Err(ResolveProblem::Ambiguous {
            name: name.to_owned(),
            addresses,
        })
    }
}
