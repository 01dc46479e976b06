//! What a fetch reports while it runs.

use std::fmt;

/// One step of a fetch. [`fmt::Display`] gives the line to show.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Another process fetches from the same suite; this one waits for it.
    Waiting {
        /// The image asked for.
        image: &'a str,
    },
    /// The suite's package lists are being read.
    Listing {
        /// The image asked for.
        image: &'a str,
        /// The Debian suite.
        suite: &'a str,
        /// Where from.
        mirror: &'a str,
    },
    /// A package is being downloaded.
    Downloading {
        /// The image asked for.
        image: &'a str,
        /// The package.
        package: &'a str,
        /// Its version.
        version: &'a str,
        /// Its size.
        bytes: u64,
    },
    /// A package is being unpacked.
    Unpacking {
        /// The image asked for.
        image: &'a str,
        /// The package.
        package: &'a str,
    },
    /// The image is in the cache.
    Ready {
        /// The image asked for.
        image: &'a str,
        /// What it is: the kernel's release or the package's version.
        release: &'a str,
    },
}

/// Receives the steps of a fetch; any `Fn(&Progress)` is one.
pub type Report<'a> = dyn Fn(&Progress<'_>) + 'a;

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Waiting { image } => write!(f, "{image}: waiting for another fetch"),
            Self::Listing {
                image,
                suite,
                mirror,
            } => {
                write!(
                    f,
                    "{image}: reading the package lists of {suite} from {mirror}"
                )
            }
            Self::Downloading {
                image,
                package,
                version,
                bytes,
            } => {
                write!(
                    f,
                    "{image}: downloading {package} {version}, {} MiB",
                    bytes.div_ceil(MIB)
                )
            }
            Self::Unpacking { image, package } => write!(f, "{image}: unpacking {package}"),
            Self::Ready { image, release } => write!(f, "{image}: {release} is ready"),
        }
    }
}
