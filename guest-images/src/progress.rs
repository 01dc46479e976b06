//! The steps reported by a fetch.

use std::fmt;

/// A step of a fetch. [`fmt::Display`] gives the line to show.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Another process fetches from the same suite; the fetch waits for the end.
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
        /// The mirror's URI.
        mirror: &'a str,
    },
    /// A package is being downloaded.
    Downloading {
        /// The image asked for.
        image: &'a str,
        /// The package.
        package: &'a str,
        /// The package's version.
        version: &'a str,
        /// The package's size.
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
        /// The kernel's release or the package's version.
        release: &'a str,
    },
}

/// Receiver of the steps of a fetch: any `Fn(&Progress)`.
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
