//! Objects on standard output.

use std::io::{self, Write};

use serde::Serialize;

use super::error::RemoteError;

/// Writes one JSON object a line, or the text.
pub(super) fn print<T: Serialize>(
    objects: &[T],
    json: bool,
    text: impl FnOnce() -> String,
) -> Result<(), RemoteError> {
    let mut out = io::stdout().lock();
    let mut bytes = Vec::new();
    if json {
        for object in objects {
            serde_json::to_writer(&mut bytes, object).map_err(io::Error::from)?;
            bytes.push(b'\n');
        }
    } else {
        bytes = text().into_bytes();
    }
    match out.write_all(&bytes).and_then(|()| out.flush()) {
        // The reader has closed the pipe: no more lines are wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
