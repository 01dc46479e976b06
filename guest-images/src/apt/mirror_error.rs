//! Errors of the choice of a mirror.

use std::ffi::OsString;

use thiserror::Error;

/// Why no mirror can be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MirrorError {
    /// `HYPROBE_MIRROR` is no text.
    #[error(
        "HYPROBE_MIRROR is {value:?}, which is not UTF-8; set it to the URL of a Debian mirror"
    )]
    NotUtf8 {
        /// The value.
        value: OsString,
    },
    /// `HYPROBE_MIRROR` is no URI for apt.
    #[error(
        "HYPROBE_MIRROR is {uri:?}: {reason}; set it to the URL of a Debian mirror, as in \
         http://deb.debian.org/debian"
    )]
    Variable {
        /// The value.
        uri: String,
        /// The mistake in the URI.
        reason: UriError,
    },
    /// The archive in the catalog is no URI for apt.
    #[error("the archive in the image catalog is {uri:?}: {reason}; correct the catalog")]
    Archive {
        /// The value.
        uri: String,
        /// The mistake in the URI.
        reason: UriError,
    },
    /// Debian's keys are not installed.
    #[error(
        "Debian's keyring is missing (/usr/share/keyrings/debian-archive-keyring.gpg), so the \
         signature of a package list cannot be checked; install the package debian-archive-keyring"
    )]
    NoKeyring,
}

/// Mistake in a mirror's URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UriError {
    /// Another scheme, or none.
    #[error("it begins with neither http://, https:// nor file:/")]
    Scheme,
    /// No host.
    #[error("it names no host")]
    NoHost,
    /// A relative path.
    #[error("the path after file: does not begin with /")]
    RelativePath,
    /// A character not allowed in a URI of apt's list of sources.
    #[error("it has the character {character:?}, which cannot stand in a URL for apt")]
    Character {
        /// The first forbidden character.
        character: char,
    },
}
