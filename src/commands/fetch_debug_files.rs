//! `hyprobe fetch-debug-files`: the process that fetches debug files of modules for a confined one.

use std::io;

use thiserror::Error;

use crate::exit::{Exit, Failure};
use crate::source_lines::serve_fetches;

/// Why no further files are fetched.
#[derive(Debug, Error)]
#[error("cannot fetch debug files for another process")]
pub(crate) struct FetchProcessError(#[from] io::Error);

impl Failure for FetchProcessError {
    fn exit(&self) -> Exit {
        Exit::HostCannot
    }
}

/// Fetches until the other process ends.
pub(crate) fn serve() -> Result<Exit, FetchProcessError> {
    serve_fetches()?;
    Ok(Exit::Done)
}
