//! The client's event stream.

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Runtime;

use super::ClientError;
use crate::api::EventLine;

/// Maximum length of a line in bytes: a summary of 100 000 probes has 30 MiB.
const LINE_BYTES: usize = 64 << 20;

/// Event stream: an iterator that waits for the next event, and ends with the run.
#[derive(Debug)]
pub struct Events {
    runtime: Runtime,
    body: Incoming,
    /// Received bytes; the lines before `read` have been returned.
    pending: Vec<u8>,
    read: usize,
    over: bool,
}

impl Events {
    pub(super) fn new(runtime: Runtime, body: Incoming) -> Self {
        Self {
            runtime,
            body,
            pending: Vec::new(),
            read: 0,
            over: false,
        }
    }

    /// The next whole line; `None` at the end of the stream.
    fn line(&mut self) -> Option<Result<Vec<u8>, ClientError>> {
        loop {
            let rest = &self.pending[self.read..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest[..end].to_vec();
                self.read += end + 1;
                return Some(Ok(line));
            }
            self.pending.drain(..self.read);
            self.read = 0;
            if self.pending.len() > LINE_BYTES {
                let error = format!("a line is longer than {LINE_BYTES} bytes");
                return Some(Err(ClientError::Answer(error.into())));
            }
            match self.runtime.block_on(self.body.frame())? {
                Ok(frame) => self.pending.extend(frame.into_data().unwrap_or_default()),
                Err(error) => return Some(Err(ClientError::Broken(error))),
            }
        }
    }
}

impl Iterator for Events {
    type Item = Result<EventLine, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.over {
            let Some(line) = self.line() else { break };
            let event = match line {
                // The server sends an empty line to show that the connection is alive.
                Ok(line) if line.is_empty() => continue,
                Ok(line) => serde_json::from_slice(&line).map_err(ClientError::Unreadable),
                Err(error) => Err(error),
            };
            self.over = event.is_err();
            return Some(event);
        }
        self.over = true;
        None
    }
}
