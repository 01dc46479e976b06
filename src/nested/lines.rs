//! JSON lines of bounded length.

use std::io::{self, BufRead, Read};

use serde::de::DeserializeOwned;
use thiserror::Error;

/// Why a line could not be had.
#[derive(Debug, Error)]
pub enum LineError {
    /// The other end cannot be read.
    #[error("cannot read from it")]
    Read(#[from] io::Error),
    /// The line exceeds the limit.
    #[error("a line of it is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// The line cannot be parsed.
    #[error("a line of it is not what it should be: {start:?}")]
    Parse {
        /// The beginning of the line.
        start: String,
        /// The cause.
        source: serde_json::Error,
    },
}

/// Reads a line of at most `limit` bytes as a `T`, with the line's length; `None` at the end. `buffer` is working space.
pub(super) fn read_line<T: DeserializeOwned>(
    input: &mut impl BufRead,
    buffer: &mut Vec<u8>,
    limit: u64,
) -> Result<Option<(T, u64)>, LineError> {
    buffer.clear();
    let read = input.by_ref().take(limit).read_until(b'\n', buffer)?;
    if read == 0 {
        return Ok(None);
    }
    if !buffer.ends_with(b"\n") && u64::try_from(read) == Ok(limit) {
        return Err(LineError::TooLong { limit });
    }
    let value = serde_json::from_slice(buffer).map_err(|source| LineError::Parse {
        start: String::from_utf8_lossy(buffer).chars().take(120).collect(),
        source,
    })?;
    Ok(Some((value, u64::try_from(read).unwrap_or(u64::MAX))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_and_bounded() {
        let mut input: &[u8] = b"[1]\n[22]\n[333,4]\n";
        let mut buffer = Vec::new();
        let mut next = || read_line::<Vec<u32>>(&mut input, &mut buffer, 6);
        assert_eq!(next().expect("line"), Some((vec![1], 4)));
        assert_eq!(next().expect("line"), Some((vec![22], 5)));
        assert!(matches!(next(), Err(LineError::TooLong { limit: 6 })));
    }

    #[test]
    fn line_that_is_no_json_is_in_the_error() {
        let mut buffer = Vec::new();
        let error = read_line::<u32>(&mut &b"oops\n"[..], &mut buffer, 100).expect_err("json");
        assert!(error.to_string().contains("oops"), "{error}");
        assert!(matches!(
            read_line::<u32>(&mut &b""[..], &mut buffer, 100),
            Ok(None)
        ));
    }
}
