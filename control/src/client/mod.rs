//! The client's end of the socket, with blocking calls.

mod dump;
mod error;
mod events;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::events::ProbeStatus;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use inspect::stacks::StacksOf;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

pub use self::dump::DumpStream;
pub use self::error::ClientError;
pub use self::events::Events;
use crate::api::{
    AddProbes, Added, ChangeProbe, Changed, DeclaredType, Knobs, Log, Machine, Memory, Modules,
    PerCpuVariables, Printed, Probes, Problem, Removed, SetKnobs, Stacks, Stats, Symbols, Tasks,
};

/// Time limit for an answer. A guest in a nested run may be slow to pause.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Interval between attempts to connect while the server's backlog is full.
const BACKLOG_LOOK: Duration = Duration::from_millis(5);
/// Maximum length of an answer in bytes.
const ANSWER_BYTES: usize = 64 << 20;

/// A client of a run. Each request has a connection of its own: a change sent on a connection which the server closes at that moment, because
/// it was idle, could not be sent again, as nobody knows whether the server has made the change.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    runtime: Runtime,
}

impl Client {
    /// Creates a client of the run listening at `path`.
    ///
    /// # Errors
    ///
    /// If this process has no file descriptors left.
    pub fn new(path: &Path) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClientError::Runtime)?;
        Ok(Self {
            path: path.to_owned(),
            runtime,
        })
    }

    /// Lists all probes, from all pages.
    ///
    /// # Errors
    ///
    /// See [`ClientError`], as for all methods below.
    pub fn probes(&self) -> Result<Vec<ProbeStatus>, ClientError> {
        let mut all = Vec::new();
        let mut path = "/probes".to_owned();
        loop {
            let page: Probes = self.ask(Method::GET, &path, None::<&()>)?;
            all.extend(page.probes);
            match page.next {
                Some(next) => path = format!("/probes?after={next}"),
                None => return Ok(all),
            }
        }
    }

    /// Adds probes: all of them or none.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn add(&self, probes: &AddProbes) -> Result<Added, ClientError> {
        self.ask(Method::POST, "/probes", Some(probes))
    }

    /// Shows a probe.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn probe(&self, id: &str) -> Result<Changed, ClientError> {
        self.ask(Method::GET, &probe_path(id), None::<&()>)
    }

    /// Shows the counts of a probe.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn stats(&self, id: &str) -> Result<Stats, ClientError> {
        self.ask(
            Method::GET,
            &format!("{}/stats", probe_path(id)),
            None::<&()>,
        )
    }

    /// Changes a probe.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn change(&self, id: &str, change: &ChangeProbe) -> Result<Changed, ClientError> {
        self.ask(Method::PATCH, &probe_path(id), Some(change))
    }

    /// Removes a probe.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn remove(&self, id: &str) -> Result<Removed, ClientError> {
        self.ask(Method::DELETE, &probe_path(id), None::<&()>)
    }

    /// Removes all probes.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn remove_all(&self) -> Result<Removed, ClientError> {
        self.ask(Method::DELETE, "/probes", None::<&()>)
    }

    /// Sets knobs.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn set_knobs(&self, knobs: &SetKnobs) -> Result<Knobs, ClientError> {
        self.ask(Method::PUT, "/knobs", Some(knobs))
    }

    /// Shows the machine.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn machine(&self) -> Result<Machine, ClientError> {
        self.ask(Method::GET, "/machine", None::<&()>)
    }

    /// Pauses, resumes or stops the machine: `verb` is the last part of the path.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn command(&self, verb: &str) -> Result<Machine, ClientError> {
        self.ask(Method::POST, &format!("/machine/{verb}"), None::<&()>)
    }

    /// Lists symbols with names that match `pattern`.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn symbols(&self, pattern: &str) -> Result<Symbols, ClientError> {
        let path = format!("/symbols?match={}", encoded(pattern));
        self.ask(Method::GET, &path, None::<&()>)
    }

    /// Reads memory; `place` is `gva` or `gpa`.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn memory(&self, place: &str, address: u64, len: u64) -> Result<Memory, ClientError> {
        let path = format!("/memory?{place}={address:#x}&len={len}");
        self.ask(Method::GET, &path, None::<&()>)
    }

    /// Dumps the guest, as the frames of `dump::sparse`. The guest is paused for `pause_limit` at most.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn dump(self, pause_limit: Duration) -> Result<DumpStream, ClientError> {
        let seconds = pause_limit.as_secs().max(1);
        let path = format!("/dump?form=sparse&pause_limit={seconds}");
        let response = self.stream(&path, "application/vnd.hyprobe.sparse-core")?;
        Ok(DumpStream::new(self.runtime, response.into_body()))
    }

    /// Shows the declaration of a type.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn declared(&self, name: &str) -> Result<DeclaredType, ClientError> {
        let path = format!("/types?name={}", encoded(name));
        self.ask(Method::GET, &path, None::<&()>)
    }

    /// Evaluates an expression. With `declared`, the value is the object of that type at the address named by the expression.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn print(
        &self,
        expression: &str,
        declared: Option<&str>,
        depth: Option<u8>,
    ) -> Result<Printed, ClientError> {
        let mut path = format!("/print?expr={}", encoded(expression));
        if let Some(declared) = declared {
            path.push_str(&format!("&type={}", encoded(declared)));
        }
        if let Some(depth) = depth {
            path.push_str(&format!("&depth={depth}"));
        }
        self.ask(Method::GET, &path, None::<&()>)
    }

    /// Lists processes, or with `threads` all threads.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn tasks(&self, threads: bool) -> Result<Tasks, ClientError> {
        let path = format!("/tasks?threads={threads}");
        self.ask(Method::GET, &path, None::<&()>)
    }

    /// Unwinds kernel stacks.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn stacks(&self, of: StacksOf) -> Result<Stacks, ClientError> {
        let path = match of {
            StacksOf::Vcpus => "/stacks".to_owned(),
            StacksOf::Vcpu(vcpu) => format!("/stacks?vcpu={vcpu}"),
            StacksOf::Task(tid) => format!("/stacks?tid={tid}"),
            StacksOf::All => "/stacks?all=true".to_owned(),
        };
        self.ask(Method::GET, &path, None::<&()>)
    }

    /// Lists loaded modules.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn modules(&self) -> Result<Modules, ClientError> {
        self.ask(Method::GET, "/modules", None::<&()>)
    }

    /// Lists per-CPU variables with names that match `pattern`.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn per_cpu(&self, pattern: &str) -> Result<PerCpuVariables, ClientError> {
        let path = format!("/percpu?match={}", encoded(pattern));
        self.ask(Method::GET, &path, None::<&()>)
    }

    /// Reads the kernel's log.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn log(&self) -> Result<Log, ClientError> {
        self.ask(Method::GET, "/log", None::<&()>)
    }

    /// Streams events, from number `from` on; without `from`, from the next event on.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn events(self, from: Option<u64>) -> Result<Events, ClientError> {
        let path = match from {
            Some(from) => format!("/events?from={from}"),
            None => "/events".to_owned(),
        };
        let response = self.stream(&path, "application/x-ndjson")?;
        Ok(Events::new(self.runtime, response.into_body()))
    }

    /// Requests a stream.
    fn stream(&self, path: &str, accept: &str) -> Result<Response<Incoming>, ClientError> {
        let request = Request::get(path)
            .header(header::HOST, "hyprobe")
            .header(header::ACCEPT, accept)
            .body(Full::default())
            .map_err(ClientError::Request)?;
        let response = self.runtime.block_on(async {
            let (mut sender, connection) = connect(&self.path).await?;
            // The task ends with the stream. Errors of the connection reach the caller through the pending answer.
            tokio::spawn(connection);
            exchange(sender.send_request(request)).await
        })?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.runtime.block_on(refusal(response))),
        }
    }

    /// Sends a request to any path, and reads the answer.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(ClientError::Unwritable)?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "hyprobe")
            .header(header::CONTENT_TYPE, "application/json")
            // The server closes the connection behind the answer, and then has room for the next connection.
            .header(header::CONNECTION, "close")
            .body(Full::from(body))
            .map_err(ClientError::Request)?;
        let bytes = self.runtime.block_on(async {
            let (mut sender, connection) = connect(&self.path).await?;
            let answer = async move {
                let response = exchange(sender.send_request(request)).await?;
                match response.status().is_success() {
                    true => whole(response).await,
                    false => Err(refusal(response).await),
                }
            };
            let mut answer = std::pin::pin!(answer);
            // An error of the connection is an error of the answer, too. Behind the answer, the connection is dropped: if the server read no
            // more bytes of the request, the connection would never end.
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                _ = connection => answer.await,
            }
        })?;
        serde_json::from_slice(&bytes).map_err(ClientError::Unreadable)
    }
}

fn probe_path(id: &str) -> String {
    format!("/probes/{}", encoded(id))
}

/// Percent-encodes a part of a path or a value of a query.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if plain(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

async fn connect(
    path: &Path,
) -> Result<
    (
        SendRequest<Full<Bytes>>,
        Connection<TokioIo<UnixStream>, Full<Bytes>>,
    ),
    ClientError,
> {
    let began = Instant::now();
    let stream = loop {
        match UnixStream::connect(path).await {
            // The backlog is full. A blocking connect would wait, too.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < ANSWER_TIME =>
            {
                tokio::time::sleep(BACKLOG_LOOK).await;
            }
            connected => break connected,
        }
    };
    let stream = stream.map_err(|source| ClientError::Connect {
        path: path.to_owned(),
        source,
    })?;
    http1::handshake(TokioIo::new(stream))
        .await
        .map_err(ClientError::Broken)
}

async fn exchange(
    answer: impl Future<Output = hyper::Result<Response<Incoming>>>,
) -> Result<Response<Incoming>, ClientError> {
    match tokio::time::timeout(ANSWER_TIME, answer).await {
        Ok(answer) => answer.map_err(ClientError::Broken),
        Err(_) => Err(ClientError::TooSlow(ANSWER_TIME)),
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect();
    match tokio::time::timeout(ANSWER_TIME, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(ClientError::Answer(error)),
        Err(_) => Err(ClientError::TooSlow(ANSWER_TIME)),
    }
}

/// The error for an answer with an error status.
async fn refusal(response: Response<Incoming>) -> ClientError {
    let status = response.status();
    match whole(response).await {
        Ok(bytes) => match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => ClientError::Refused(Box::new(problem)),
            Err(_) => ClientError::Status(status.as_u16()),
        },
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests;
