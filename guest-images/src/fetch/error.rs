//! Errors of a fetch.

use std::io;

use thiserror::Error;

use crate::apt::{MirrorError, OpenError, ToolFailure, WorkDirError};
use crate::cache::CacheError;

/// Why an image could not be fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The catalog does not have the image.
    #[error("there is no image {name:?}; known are {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names in the catalog.
        known: String,
    },
    /// apt or dpkg is missing.
    #[error(
        "cannot start {program}; images are fetched with apt and dpkg, so run this on Debian \
             or Ubuntu, or copy a filled cache here and point HYPROBE_CACHE at it"
    )]
    NoApt {
        /// The program.
        program: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The system's configuration of apt cannot be read.
    #[error("cannot read the system's configuration of apt ({detail}); correct it and fetch again")]
    AptConfiguration {
        /// Error message of apt-config.
        detail: String,
    },
    /// The user of apt's sandbox does not exist.
    #[error(
        "apt, started by root, downloads as the user {user}, and there is no such user ({detail}); \
         reinstall the package apt, or name another user in APT::Sandbox::User in /etc/apt/apt.conf.d"
    )]
    NoSandboxUser {
        /// The user.
        user: String,
        /// Error message of `id`.
        detail: String,
    },
    /// apt has no directory to work in.
    #[error(transparent)]
    WorkDir(#[from] WorkDirError),
    /// No mirror can be used.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// No mirror gave the suite's package list.
    #[error(
        "cannot read the package lists of {suite} from {tried} ({detail}); check the network, \
             or set HYPROBE_MIRROR to a Debian mirror that has {suite}"
    )]
    Suite {
        /// The suite.
        suite: String,
        /// The mirrors, in the order they were tried.
        tried: String,
        /// Error message of apt.
        detail: String,
    },
    /// The suite does not have the package.
    #[error(
        "{package} is not to be had in {suite} ({detail}); correct images.toml, or set \
             HYPROBE_MIRROR to a complete mirror"
    )]
    Package {
        /// The package.
        package: String,
        /// The suite.
        suite: String,
        /// Error message of apt.
        detail: String,
    },
    /// The suite does not have the debug file of the kernel in the cache.
    #[error(
        "{package} is not to be had in {suite} ({detail}): if the suite has a newer kernel, fetch both, \
             first with --refresh {kernel}"
    )]
    DebugPackage {
        /// The package.
        package: String,
        /// The suite.
        suite: String,
        /// The image of the kernel.
        kernel: String,
        /// Error message of apt.
        detail: String,
    },
    /// The package did not arrive.
    #[error("cannot download {package} ({detail}); check the network and fetch again")]
    Download {
        /// The package.
        package: String,
        /// Error message of apt.
        detail: String,
    },
    /// The package cannot be unpacked.
    #[error("cannot unpack {package} ({detail}); check that the disk has space left")]
    Unpack {
        /// The package.
        package: String,
        /// Error message of dpkg.
        detail: String,
    },
    /// The packages lack a file of the image.
    #[error(
        "{packages} hold no {missing}; the packaging changed, so hyprobe must be taught where \
             it is now (guest-images/src/fetch.rs)"
    )]
    Incomplete {
        /// The packages.
        packages: String,
        /// The missing file.
        missing: String,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl From<OpenError> for FetchError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Configuration(failure) => {
                explain(failure, |detail| Self::AptConfiguration { detail })
            }
            OpenError::NoUser { user, detail } => Self::NoSandboxUser { user, detail },
            OpenError::WorkDir(error) => Self::WorkDir(error),
        }
    }
}

/// Converts a tool's failure: a missing tool to [`FetchError::NoApt`], a reported error with `exit`.
pub(super) fn explain(failure: ToolFailure, exit: impl FnOnce(String) -> FetchError) -> FetchError {
    match failure {
        ToolFailure::Start { program, source } => FetchError::NoApt { program, source },
        ToolFailure::Exit { detail } => exit(detail),
    }
}
