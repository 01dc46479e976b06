//! The client's end of a dump.

use std::io::{self, Read};

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use tokio::runtime::Runtime;

/// The frames of a dump, as a blocking reader. Ends where the server ends the answer.
#[derive(Debug)]
pub struct DumpStream {
    runtime: Runtime,
    body: Incoming,
    /// Received bytes that have not been read.
    pending: Bytes,
}

impl DumpStream {
    pub(super) fn new(runtime: Runtime, body: Incoming) -> Self {
        Self {
            runtime,
            body,
            pending: Bytes::new(),
        }
    }
}

impl Read for DumpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.pending.is_empty() {
            match self.runtime.block_on(self.body.frame()) {
                Some(Ok(frame)) => self.pending = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
        let taken = self.pending.split_to(buf.len().min(self.pending.len()));
        buf[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}
