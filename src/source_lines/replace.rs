//! The probes and expectations of a run, with places in place of source lines and inlined copies.

use std::path::Path;

use debuginfo::DebugInfo;
use manifest::{Expectation, ProbeConfig, ProbeSpec};
use thiserror::Error;

use super::debug_file::{self, DebugFileError};
use super::identity::KernelIdentity;
use super::sites::{KernelSymbols, SiteError, sites};
use crate::config::{Boot, RunConfig};
use crate::exit::{Exit, Failure};
use crate::run::guest::Guest;

/// Why probes at lines or inlined copies cannot be replaced.
#[derive(Debug, Error)]
pub(crate) enum SourceLinesError {
    /// The debug file.
    #[error(transparent)]
    File(#[from] DebugFileError),
    /// A line or a function.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// An expectation about several places.
    #[error("an expectation is about one place, and `{spec}` stands for {}", .sites.len())]
    Expected {
        /// The probe of the expectation.
        spec: String,
        /// The places.
        sites: Vec<String>,
    },
}

impl Failure for SourceLinesError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::File(error) => error.help(),
            Self::Site(error) => error.help(),
            Self::Expected { sites, .. } => Some(format!("write one of {}", sites.join(", "))),
        }
    }
}

/// The first probe of a run that needs debug information.
pub(crate) fn needy<'r>(
    config: &'r RunConfig,
    expectations: &'r [Expectation],
) -> Option<&'r ProbeSpec> {
    let expected = expectations.iter().flat_map(Expectation::probes);
    let specs = config.probes.iter().map(|probe| &probe.at);
    let mut specs = specs.chain(expected.map(|(spec, _)| spec));
    specs.find(|spec| spec.location.needs_debug_info())
}

/// Replaces the probes of `config` and of `expectations` that need debug information. Returns the debug file, if one was given or needed;
/// `say` gets the progress.
pub(crate) fn replace(
    config: &mut RunConfig,
    expectations: &mut [Expectation],
    guest: &Guest,
    given: Option<&Path>,
    say: &dyn Fn(String),
) -> Result<Option<DebugInfo>, SourceLinesError> {
    let needy = needy(config, expectations);
    if given.is_none() && needy.is_none() {
        return Ok(None);
    }
    say("reading the kernel's debug information".to_owned());
    let kernel = KernelIdentity::of_guest(&config.kernel, guest);
    let spec = needy.map(ToString::to_string).unwrap_or_default();
    let info = debug_file::open(given, &kernel, &spec)?;
    let kernel = KernelSymbols {
        symbols: guest.kernel.symbols(),
        slide: match config.boot {
            Boot::Direct => Some(0),
            Boot::BzImage => None,
        },
    };
    let mut probes = Vec::with_capacity(config.probes.len());
    for probe in config.probes.drain(..) {
        let found = sites(&info, &probe.at, kernel)?;
        probes.extend(found.into_iter().map(|at| ProbeConfig {
            at,
            ..probe.clone()
        }));
    }
    config.probes = probes;
    for spec in expectations.iter_mut().flat_map(Expectation::specs_mut) {
        let found = sites(&info, spec, kernel)?;
        match <[ProbeSpec; 1]>::try_from(found) {
            Ok([site]) => *spec = site,
            Err(sites) => {
                return Err(SourceLinesError::Expected {
                    spec: spec.to_string(),
                    sites: sites.iter().map(ToString::to_string).collect(),
                });
            }
        }
    }
    Ok(Some(info))
}
