//! What can go wrong in a fetch.

use std::io;

use thiserror::Error;

use crate::apt::{MirrorError, OpenError, ToolFailure, WorkDirError};
use crate::cache::CacheError;

/// Why an image could not be fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The catalog has no such image.
    #[error("there is no image {name:?}; known are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
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
        /// What apt-config said.
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
        /// What `id` said.
        detail: String,
    },
    /// There is no directory for apt to work in.
    #[error(transparent)]
    WorkDir(#[from] WorkDirError),
    /// There is no mirror to ask.
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
        /// What apt said.
        detail: String,
    },
    /// The suite has no such package.
    #[error(
        "{package} is not to be had in {suite} ({detail}); correct images.toml, or set \
             HYPROBE_MIRROR to a complete mirror"
    )]
    Package {
        /// The package.
        package: String,
        /// The suite.
        suite: String,
        /// What apt said.
        detail: String,
    },
    /// The package did not arrive.
    #[error("cannot download {package} ({detail}); check the network and fetch again")]
    Download {
        /// The package.
        package: String,
        /// What apt said.
        detail: String,
    },
    /// The package cannot be unpacked.
    #[error("cannot unpack {package} ({detail}); check that the disk has space left")]
    Unpack {
        /// The package.
        package: String,
        /// What dpkg said.
        detail: String,
    },
    /// The packages do not hold what the image is for.
    #[error(
        "{packages} hold no {missing}; the packaging changed, so hyprobe must be taught where \
             it is now (guest-images/src/fetch.rs)"
    )]
    Incomplete {
        /// The packages.
        packages: String,
        /// What was looked for.
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

/// Tells a missing tool from one that `exit` has a word for.
pub(super) fn explain(failure: ToolFailure, exit: impl FnOnce(String) -> FetchError) -> FetchError {
    match failure {
        ToolFailure::Start { program, source } => FetchError::NoApt { program, source },
        ToolFailure::Exit { detail } => exit(detail),
    }
}
