//! The probes and expectations of a run, with places in place of source lines and inlined copies.

use std::path::PathBuf;

use debuginfo::DebugInfo;
use errors::chain;
use manifest::{Expectation, ModuleSpec, ProbeConfig, ProbeSpec};
use probes::{Kernel, resolve};
use thiserror::Error;

use super::debug_file::{self, DebugFileError, MayFetch};
use super::identity::KernelIdentity;
use super::known_builds::KnownBuilds;
use super::module_file_error::ModuleFileError;
use super::module_files::ModuleFiles;
use super::named_files::{NamedFiles, TwoKernelsError};
use super::sites::{Site, SiteError, SourceSiteError, left_out};
use super::source_sites::SourceSites;
use super::spellings::Spellings;
use crate::config::{Boot, RunConfig};
use crate::exit::{Exit, Failure};
use crate::run::guest::Guest;

/// Why probes at lines or inlined copies cannot be replaced.
#[derive(Debug, Error)]
pub(crate) enum SourceLinesError {
    /// The named files.
    #[error(transparent)]
    Named(#[from] TwoKernelsError),
    /// The debug file.
    #[error(transparent)]
    File(#[from] DebugFileError),
    /// The debug file of a module.
    #[error("cannot probe `{spec}`")]
    Module {
        /// The probe.
        spec: String,
        /// The cause.
        source: Box<ModuleFileError>,
    },
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

impl SourceLinesError {
    /// The error of the sites of `spec`.
    pub(crate) fn of_sites(spec: &ProbeSpec, error: SourceSiteError) -> Self {
        match error {
            SourceSiteError::File(source) => Self::Module {
                spec: spec.to_string(),
                source,
            },
            SourceSiteError::Site(error) => Self::Site(error),
        }
    }

    /// Whether an optional expectation is skipped: the kernel or the module has no such place, or the module has no debug file here.
    fn is_absence(&self) -> bool {
        match self {
            Self::Site(error) => error.is_absence(),
            Self::Module { source, .. } => source.is_absence(),
            Self::Named(_) | Self::File(_) | Self::Expected { .. } => false,
        }
    }
}

impl Failure for SourceLinesError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Named(_) => None,
            Self::File(error) => error.help(),
            Self::Module { source, .. } => source.help(),
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
    all_needy(config, expectations).next()
}

/// The first probe of a run that needs debug information of the kernel itself.
pub(crate) fn needs_kernel_file<'r>(
    config: &'r RunConfig,
    expectations: &'r [Expectation],
) -> Option<&'r ProbeSpec> {
    all_needy(config, expectations).find(|spec| spec.module.is_none())
}

/// The modules whose debug files a run needs.
pub(crate) fn needy_modules<'r>(
    config: &'r RunConfig,
    expectations: &'r [Expectation],
) -> impl Iterator<Item = &'r ModuleSpec> {
    all_needy(config, expectations).filter_map(|spec| spec.module.as_ref())
}

fn all_needy<'r>(
    config: &'r RunConfig,
    expectations: &'r [Expectation],
) -> impl Iterator<Item = &'r ProbeSpec> {
    let expected = expectations.iter().flat_map(Expectation::probes);
    let specs = config.probes.iter().map(|probe| &probe.at);
    let specs = specs.chain(expected.map(|(spec, _)| spec));
    specs.filter(|spec| spec.location.needs_debug_info())
}

/// Whether the expectation needs debug information of the kernel itself.
fn is_needy(expectation: &Expectation) -> bool {
    let mut probes = expectation.probes().into_iter();
    probes.any(|(spec, _)| spec.location.needs_debug_info() && spec.module.is_none())
}

/// The debug files for the lines of frames.
#[derive(Debug)]
pub(crate) struct LineFiles {
    /// The file of the kernel, or the reason why there is no file.
    pub(crate) kernel: Result<DebugInfo, String>,
    /// Those of modules.
    pub(crate) modules: ModuleFiles,
}

/// The result of a replacement.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    /// The debug files for the lines of frames, if a file was given or needed.
    pub(crate) files: Option<LineFiles>,
    /// The user's words for the places.
    pub(crate) spellings: Spellings,
    /// The places and expectations that are left out, a sentence each.
    pub(crate) notes: Vec<String>,
}

/// Replaces the probes of `config` and of `expectations` that need debug information, and drops optional expectations about places that
/// the kernel lacks. A missing debug file is fetched if the process may.
pub(crate) fn replace(
    config: &mut RunConfig,
    expectations: &mut Vec<Expectation>,
    guest: &Guest,
    given: &[PathBuf],
    may_fetch: MayFetch<'_>,
) -> Result<Replaced, SourceLinesError> {
    let named = NamedFiles::new(given)?;
    if given.is_empty() && needy(config, expectations).is_none() {
        return Ok(Replaced::default());
    }
    if let MayFetch::Yes(say) = may_fetch {
        say("reading the kernel's debug information".to_owned());
    }
    let identity = KernelIdentity::of_guest(&config.kernel, guest);
    let needy = needs_kernel_file(config, expectations).map(ToString::to_string);
    let is_required = needy.is_some() || named.kernel().is_some();
    let spec = needy.unwrap_or_default();
    let of_kernel = match is_required {
        true => may_fetch,
        false => MayFetch::No,
    };
    let mut notes = Vec::new();
    let info = match debug_file::open(named.kernel(), &identity, &spec, of_kernel) {
        Ok(info) => Ok(info),
        // Lines of modules need no file of the kernel.
        Err(error) if !is_required => Err(error.reason()),
        Err(error @ (DebugFileError::Missing { .. } | DebugFileError::Unusable { .. })) => {
            let reason = error.reason();
            notes.push(without_file(config, expectations, error)?);
            Err(reason)
        }
        Err(error) => return Err(error.into()),
    };
    let slide = match config.boot {
        Boot::Direct => Some(0),
        Boot::BzImage => None,
    };
    let modules = ModuleFiles::new(&identity, info.as_ref().ok(), named)
        .with_builds(KnownBuilds::of_kernel(&config.kernel));
    let mut replacement = Replacement {
        sites: SourceSites::new(info.as_ref().ok(), guest.kernel.symbols(), slide, modules),
        guest,
        may_fetch,
        spellings: Spellings::default(),
        notes,
    };
    let mut probes = Vec::with_capacity(config.probes.len());
    for probe in config.probes.drain(..) {
        let found = replacement.probes(&probe.at)?;
        probes.extend(found.into_iter().map(|Site { spec, variables }| {
            let at_site = ProbeConfig {
                at: spec,
                variables,
                ..probe.clone()
            };
            match at_site.variables_fit() {
                true => at_site,
                // Counts show no variables.
                false => ProbeConfig {
                    variables: Vec::new(),
                    ..at_site
                },
            }
        }));
    }
    config.probes = probes;
    let mut kept = Vec::with_capacity(expectations.len());
    for mut expectation in expectations.drain(..) {
        match replacement.expectation(&mut expectation) {
            Ok(()) => kept.push(expectation),
            // As for a function that the kernel lacks: see `admit`. The lines of a file move with each change of the file, hence the note.
            Err(error) if expectation.optional && error.is_absence() => {
                let note = format!("an optional expectation is skipped: {}", chain(&error));
                replacement.note(note);
            }
            Err(error) => return Err(error),
        }
    }
    *expectations = kept;
    let Replacement {
        sites,
        spellings,
        notes,
        ..
    } = replacement;
    let modules = sites.into_module_files();
    Ok(Replaced {
        files: Some(LineFiles {
            kernel: info,
            modules,
        }),
        spellings,
        notes,
    })
}

/// Drops the expectations that need the kernel's debug file, if all of them are optional and no probe needs the file, and returns a message.
/// Otherwise returns `error`.
fn without_file(
    config: &RunConfig,
    expectations: &mut Vec<Expectation>,
    error: DebugFileError,
) -> Result<String, SourceLinesError> {
    let is_required = |expectation: &Expectation| !expectation.optional && is_needy(expectation);
    if needs_kernel_file(config, &[]).is_some() || expectations.iter().any(is_required) {
        return Err(error.into());
    }
    let skipped = expectations.iter().filter(|it| is_needy(it));
    let skipped: Vec<String> = skipped.map(ToString::to_string).collect();
    let help = error.help().map(|help| format!("; {help}"));
    let note = format!(
        "optional expectations are skipped ({}): {error}{}",
        skipped.join(", "),
        help.unwrap_or_default()
    );
    expectations.retain(|it| !is_needy(it));
    Ok(note)
}

/// A replacement under way.
#[derive(Debug)]
struct Replacement<'r> {
    sites: SourceSites<'r>,
    guest: &'r Guest,
    may_fetch: MayFetch<'r>,
    spellings: Spellings,
    notes: Vec<String>,
}

impl Replacement<'_> {
    /// The probes in place of a requested one: those that the engine can resolve.
    fn probes(&mut self, spec: &ProbeSpec) -> Result<Vec<Site>, SourceLinesError> {
        let sites = self.sites(spec)?;
        let (sites, left_out) = resolved(&self.guest.kernel, spec, sites);
        left_out.into_iter().for_each(|note| self.note(note));
        Ok(sites)
    }

    /// The places of `spec` that a processor may execute.
    fn sites(&mut self, spec: &ProbeSpec) -> Result<Vec<Site>, SourceLinesError> {
        if !spec.location.needs_debug_info() {
            return Ok(vec![Site::only(spec)]);
        }
        let found = self.sites.of(spec, self.may_fetch);
        let found = found.map_err(|error| SourceLinesError::of_sites(spec, error))?;
        let notes = found.notes(spec).into_iter();
        notes.for_each(|note| self.note(note));
        for site in &found.sites {
            self.spellings.add(&site.spec, spec);
        }
        Ok(found.sites)
    }

    /// Keeps a sentence. A probe and an expectation may name the same line.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Names the place of an expectation. A place that the engine cannot resolve counts: an execution there would be missed.
    fn expectation(&mut self, expectation: &mut Expectation) -> Result<(), SourceLinesError> {
        for spec in expectation.specs_mut() {
            let found = self.sites(spec)?;
            match <[Site; 1]>::try_from(found) {
                Ok([site]) => *spec = site.spec,
                Err(sites) => {
                    return Err(SourceLinesError::Expected {
                        spec: spec.to_string(),
                        sites: sites.iter().map(|site| site.spec.to_string()).collect(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The `sites` of `spec` that the engine can resolve, and a message about the others: as for a pattern, whose other matches are armed. If
/// the engine can resolve none, all are returned, and the check of the run says why.
fn resolved(kernel: &Kernel, spec: &ProbeSpec, sites: Vec<Site>) -> (Vec<Site>, Option<String>) {
    // Addresses are running ones, and are in `sites` only if the kernel runs where it is linked.
    let errors = sites
        .iter()
        .map(|site| resolve(kernel, &site.spec, 0).err());
    let errors: Vec<_> = errors.collect();
    let number = errors.iter().flatten().count();
    let first = errors.iter().flatten().next().map(ToString::to_string);
    match first {
        Some(first) if number < sites.len() => {
            let why = format!("the kernel's code does not fit; the first: {first}");
            let note = left_out(spec, number, sites.len(), &why);
            let fits = sites.into_iter().zip(&errors);
            let fits = fits.filter_map(|(site, error)| error.is_none().then_some(site));
            (fits.collect(), Some(note))
        }
        _ => (sites, None),
    }
}

#[cfg(test)]
mod tests;
