//! The kernel's debug file: given by the user, or found.

use std::cell::Cell;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use debuginfo::{DebugInfo, OpenError};
use errors::chain;
use files::ReadError;
use thiserror::Error;

use super::debuginfod::{Debuginfod, FetchFileError, FetchRequest, KERNEL_LIMITS};
use super::identity::KernelIdentity;
use crate::exit::{Exit, Failure};

/// Why there is no debug information of the kernel.
#[derive(Debug, Error)]
pub(crate) enum DebugFileError {
    /// The file cannot be used.
    #[error("cannot use the debug file {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: OpenError,
    },
    /// The file belongs to another kernel.
    #[error(
        "the debug file {path} belongs to another kernel: its build-id is {theirs}, and the guest's kernel has {ours}"
    )]
    OtherKernel {
        /// The file.
        path: PathBuf,
        /// The file's build-id.
        theirs: String,
        /// The build-id of the guest's kernel.
        ours: String,
        /// The Debian package with the right file.
        package: Option<String>,
    },
    /// The kernel has no build-id, and the file is not the kernel's own.
    #[error(
        "nothing shows that the debug file {path} belongs to the guest's kernel, which has no build-id"
    )]
    NoBuildId {
        /// The file.
        path: PathBuf,
    },
    /// No file was given, and none was found.
    #[error(
        "cannot probe `{spec}` without the kernel's debug information: a file with the build-id {build_id} is needed"
    )]
    Missing {
        /// The probe.
        spec: String,
        /// The build-id of the guest's kernel.
        build_id: String,
        /// The image with the file, for a stock kernel.
        image: Option<String>,
        /// The Debian package with the file.
        package: Option<String>,
    },
    /// A server of debuginfod.
    #[error(transparent)]
    Fetch(Box<FetchFileError>),
    /// No file was given, and the one that was found is damaged, unreadable or another kernel's.
    #[error("cannot probe `{spec}` with the debug information that this host has for the kernel")]
    Unusable {
        /// The probe.
        spec: String,
        /// The image with the file, for a stock kernel.
        image: Option<String>,
        /// The Debian package with the file.
        package: Option<String>,
        /// The cause.
        source: Box<DebugFileError>,
    },
}

impl From<FetchFileError> for DebugFileError {
    fn from(error: FetchFileError) -> Self {
        Self::Fetch(Box::new(error))
    }
}

impl DebugFileError {
    /// The reason without a probe, for frames of the kernel, and what the user can do.
    pub(crate) fn reason(&self) -> String {
        let why = match self {
            Self::Missing { build_id, .. } => {
                format!("this host has no debug file of the kernel with the build-id {build_id}")
            }
            Self::Unusable { source, .. } => chain(source),
            other => chain(other),
        };
        let help = self.help().map(|help| format!(": {help}"));
        why + &help.unwrap_or_default()
    }
}

impl Failure for DebugFileError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Open { .. } | Self::Fetch(_) => None,
            Self::Missing { image: Some(image), .. } => Some(format!(
                "fetch the file (300 MB): hyprobe images fetch {image}; or give the vmlinux of this build: --debug-info FILE"
            )),
            Self::OtherKernel { package, .. } | Self::Missing { package, .. } => Some(match package {
                Some(package) => format!("install Debian's {package}, or give the vmlinux of this build: --debug-info FILE"),
                None => "give the vmlinux of the kernel's own build: --debug-info FILE".to_owned(),
            }),
            Self::Unusable { package, source, .. } if matches!(**source, Self::Fetch(_)) => {
                let package = package.as_ref();
                let install = package.map(|package| format!("install Debian's {package}, "));
                let install = install.unwrap_or_default();
                Some(format!("correct DEBUGINFOD_URLS or the network, {install}or give the vmlinux of this build: --debug-info FILE"))
            }
            Self::Unusable { image, package, .. } => {
                let fetch = image.as_ref().map(|image| {
                    format!("fetch the file (300 MB): hyprobe images fetch --refresh {image}")
                });
                let again = match package {
                    Some(package) => format!("install Debian's {package} again"),
                    None => "replace the file".to_owned(),
                };
                let others = format!("{again}, or give the vmlinux of this build: --debug-info FILE");
                Some(fetch.into_iter().chain([others]).collect::<Vec<_>>().join("; "))
            }
            Self::NoBuildId { .. } => {
                Some("link the kernel with --build-id, or boot the file with the debug information itself".to_owned())
            }
        }
    }
}

/// Whether a file that this host does not have may be fetched. A process that works for a guest may not.
#[derive(Clone, Copy)]
pub(crate) enum MayFetch<'s> {
    /// From the servers of debuginfod, if the environment names any. The function gets the progress.
    Yes(&'s dyn Fn(String)),
    No,
}

impl fmt::Debug for MayFetch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes(_) => "Yes",
            Self::No => "No",
        })
    }
}

/// Opens the file `given`, or else a file that belongs to `kernel` and exists on this host or, with `may_fetch`, on a server of debuginfod; `spec`
/// is the probe that needs the file.
pub(crate) fn open(
    given: Option<&Path>,
    kernel: &KernelIdentity<'_>,
    spec: &str,
    may_fetch: MayFetch<'_>,
) -> Result<DebugInfo, DebugFileError> {
    if let Some(path) = given {
        return named(path, kernel);
    }
    let servers = Debuginfod::from_env();
    search(
        kernel.candidates(),
        kernel,
        spec,
        servers.as_ref(),
        may_fetch,
    )
}

/// Opens the first of `paths` that belongs to `kernel`, or else the file of `servers`.
fn search(
    mut paths: Vec<PathBuf>,
    kernel: &KernelIdentity<'_>,
    spec: &str,
    servers: Option<&Debuginfod>,
    may_fetch: MayFetch<'_>,
) -> Result<DebugInfo, DebugFileError> {
    let by_id = servers.zip(kernel.build_id.as_deref());
    paths.extend(by_id.and_then(|(servers, id)| servers.cached(id)));
    let mut last = None;
    for path in &paths {
        match candidate(path, kernel) {
            Ok(info) => return Ok(info),
            Err(error) => last = error.or(last),
        }
    }
    if let (Some((servers, id)), MayFetch::Yes(say)) = (by_id, may_fetch) {
        let opened = |path: &Path| named(path, kernel);
        let request = FetchRequest {
            build_id: id,
            limits: KERNEL_LIMITS,
            left_bytes: &Cell::new(u64::MAX),
            say,
            is_wanted: &|| true,
        };
        match servers.clone().fetch(request, opened) {
            Ok(Some(info)) => return Ok(info),
            Ok(None) => (),
            Err(error) => last = Some(error),
        }
    }
    let (spec, package) = (spec.to_owned(), kernel.package());
    Err(match last {
        Some(error) => DebugFileError::Unusable {
            spec,
            image: kernel.debug_image(),
            package,
            source: Box::new(error),
        },
        None => DebugFileError::Missing {
            spec,
            build_id: kernel
                .build_id
                .clone()
                .unwrap_or_else(|| "of the kernel's build".to_owned()),
            image: kernel.debug_image(),
            package,
        },
    })
}

/// Opens `path`, which must belong to `kernel`.
fn named(path: &Path, kernel: &KernelIdentity<'_>) -> Result<DebugInfo, DebugFileError> {
    let info = DebugInfo::open(path).map_err(|source| DebugFileError::Open {
        path: path.to_owned(),
        source,
    })?;
    check(path, &info, kernel)?;
    Ok(info)
}

/// Opens a file that the user has not named. `Err(None)` if there is no such file, or if the kernel's own file has no debug information, as
/// usual.
fn candidate(
    path: &Path,
    kernel: &KernelIdentity<'_>,
) -> Result<DebugInfo, Option<DebugFileError>> {
    let is_own = kernel.own.as_ref().is_some_and(|(own, _)| own == path);
    let info = DebugInfo::open(path).map_err(|source| {
        let is_usual = match &source {
            OpenError::File(ReadError::Io(error)) => {
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            }
            // A compressed kernel is no ELF file.
            OpenError::Elf(_) | OpenError::NoDebugInfo { .. } => is_own,
            _ => false,
        };
        let path = path.to_owned();
        (!is_usual).then_some(DebugFileError::Open { path, source })
    })?;
    check(path, &info, kernel).map_err(|error| (!is_own).then_some(error))?;
    Ok(info)
}

/// Checks that the file is the kernel's. A kernel without a build-id has only one file of which this is known: the kernel's own.
fn check(path: &Path, info: &DebugInfo, kernel: &KernelIdentity<'_>) -> Result<(), DebugFileError> {
    let theirs = info.build_id().map(ToString::to_string);
    match (&kernel.build_id, theirs) {
        (Some(ours), Some(theirs)) if *ours == theirs => Ok(()),
        (Some(ours), theirs) => Err(DebugFileError::OtherKernel {
            path: path.to_owned(),
            theirs: theirs.unwrap_or_else(|| "missing".to_owned()),
            ours: ours.clone(),
            package: kernel.package(),
        }),
        (None, _) => {
            let is_own = kernel.own.as_ref().is_some_and(|(_, elf)| {
                files::read(path, elf.len() as u64).is_ok_and(|bytes| bytes == *elf)
            });
            match is_own {
                true => Ok(()),
                false => Err(DebugFileError::NoBuildId {
                    path: path.to_owned(),
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests;
