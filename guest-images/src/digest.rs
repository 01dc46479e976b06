//! A SHA-256 digest.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

const BYTES: usize = 32;

/// A SHA-256 digest; its text is hex.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; BYTES]);

/// Why a text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not a SHA-256 digest: it must have 64 hex digits")]
pub struct ParseDigestError {
    /// The text.
    text: String,
}

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all bytes of `reader`.
    ///
    /// # Errors
    ///
    /// The bytes cannot be read.
    pub(crate) fn of_reader(mut reader: impl Read) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        io::copy(&mut reader, &mut hasher)?;
        Ok(Self(hasher.finalize().into()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDigestError {
            text: text.to_owned(),
        };
        if text.len() != 2 * BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(error());
        }
        let mut bytes = [0; BYTES];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = ParseDigestError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digest_of_abc_is_the_standards_example() {
        assert_eq!(Digest::of(b"abc").to_string(), OF_ABC);
        assert_eq!(
            Digest::of_reader(&b"abc"[..]).expect("read"),
            Digest::of(b"abc")
        );
        assert_eq!(OF_ABC.parse(), Ok(Digest::of(b"abc")));
    }

    #[test]
    fn text_that_is_not_64_hex_digits_is_refused() {
        for text in ["", "00", &"g".repeat(64), &"é".repeat(32), &"+1".repeat(32)] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    #[test]
    fn digest_goes_through_json_as_hex() {
        let json = serde_json::to_string(&Digest::of(b"abc")).expect("json");
        assert_eq!(json, format!("{OF_ABC:?}"));
        let read: Digest = serde_json::from_str(&json).expect("digest");
        assert_eq!(read, Digest::of(b"abc"));
    }
}
