//! The route for a dump of the guest.
//!
//! ```text
//!  client ◀── body ◀── channel of 1 ◀── sending task ── a job a step ──▶ control-changes: reads a megabyte
//! ```
//!
//! The machine is paused from the first step to the last, at most up to the deadline. A step is read when the client has taken the step before
//! the last. Between two steps, the operator's thread serves other clients.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use dump::{Core, Piece, Pieces, sparse};
use errors::chain;
use hyper::body::{Frame, SizeHint};
use introspect::Unreadable;
use serde::Deserialize;
use text::GuestError;
use thiserror::Error;
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};

use super::app::App;
use super::body::QueryParams;
use crate::api::{DUMP_PAUSE, DUMP_PAUSE_SECONDS, Problem, ProblemKind};
use crate::dumped::{Original, describe, in_detours};
use crate::operator::{Bench, DumpPause, IsLast, Operator};
use crate::target::Target;

/// The time until a step is tried again after the queue was full.
const QUEUE_FULL: Duration = Duration::from_millis(10);

/// Query of a dump: the form and the limit of the pause.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DumpQuery {
    /// `elf`, the default, or `sparse`: the same file as frames, in which runs of zeros take nine bytes.
    #[serde(default)]
    #[param(inline)]
    form: Form,
    /// The guest resumes after this number of seconds, up to 3600, also if the dump is not complete; default 120.
    #[serde(default)]
    #[param(minimum = 1, maximum = 3600)]
    pause_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Form {
    #[default]
    Elf,
    Sparse,
}

/// Dumps the guest's RAM and registers as an ELF core file, without plants.
///
/// The machine is paused meanwhile. If the client is too slow, the machine resumes and the answer breaks off.
#[utoipa::path(get, path = "/dump", tag = "look", params(DumpQuery), operation_id = "dump",
    responses((status = 200, description = "The core file", content(
            (Vec<u8> = "application/octet-stream"), (Vec<u8> = "application/vnd.hyprobe.sparse-core"))),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "KVM refused to tell the registers", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Another client takes a dump, too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn dump(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<DumpQuery>,
) -> Result<Response, Problem> {
    let seconds = query.pause_limit.unwrap_or(DUMP_PAUSE.as_secs());
    if !DUMP_PAUSE_SECONDS.contains(&seconds) {
        let (first, last) = (DUMP_PAUSE_SECONDS.start(), DUMP_PAUSE_SECONDS.end());
        let detail = format!("`pause_limit` is a number from {first} to {last}");
        return Err(ProblemKind::Malformed.with(detail));
    }
    let limit = Duration::from_secs(seconds);
    let dump = app.operator.run(move |bench| Dump::begin(bench, limit));
    let (dump, remarks) = dump.await??;
    let (bytes, form) = (dump.pieces.bytes(), query.form);
    let mut first = Vec::new();
    if form == Form::Sparse {
        sparse::begin(bytes, &mut first);
        for text in &remarks {
            sparse::remark(text, &mut first);
        }
    }
    for text in remarks {
        tracing::info!("a dump is incomplete: {text}");
    }
    let (chunks, taken) = mpsc::channel(1);
    let sending = Sending {
        operator: app.operator.clone(),
        deadline: tokio::time::Instant::from_std(dump.deadline),
        dump: Arc::new(Mutex::new(dump)),
        form,
        limit,
        chunks,
    };
    tokio::spawn(sending.send(first, bytes));
    let (content, exact) = match form {
        Form::Elf => ("application/octet-stream", Some(bytes)),
        Form::Sparse => ("application/vnd.hyprobe.sparse-core", None),
    };
    let mut response = Body::new(Chunks { taken, left: exact }).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A dump under way. The machine is paused while the value lives.
struct Dump {
    pieces: Pieces,
    pause: Arc<DumpPause>,
    deadline: Instant,
}

/// A step of a dump, or its end.
enum Step {
    Bytes(Vec<u8>),
    Complete,
}

/// The reason why a dump is not complete.
#[derive(Debug, Error)]
enum DumpError {
    #[error(
        "the dump was not complete after a pause of {} s, so the guest runs on: give the pause a longer limit", .0.as_secs()
    )]
    TooSlow(Duration),
    #[error(transparent)]
    Memory(#[from] Unreadable),
    #[error("the run is over")]
    Ended,
}

impl Dump {
    /// Pauses the machine. Returns the dump, and a remark for each missing part.
    fn begin(bench: &mut Bench<'_>, limit: Duration) -> Result<(Self, Vec<String>), Problem> {
        if bench.target().is_ending() {
            return Err(ProblemKind::Ending.with("the run is over"));
        }
        if bench.dumps() > 0 {
            return Err(ProblemKind::Busy.with("another client takes a dump already"));
        }
        let deadline = Instant::now() + limit;
        let held = bench.hold_until(deadline, |target, paused, last| {
            let vcpus = match paused.vcpu_states() {
                Ok(vcpus) => vcpus,
                Err(error) => return Some(Err(error)),
            };
            let inside = in_detours(target, &vcpus);
            let again = inside.is_some() && last == IsLast::No;
            (!again).then(|| Ok(describe(target, vcpus, inside)))
        });
        let (guest, pause) = held.ok_or_else(|| ProblemKind::Ending.with("the run is over"))?;
        let guest =
            guest.map_err(|error: GuestError| ProblemKind::KvmRefused.with(chain(&error)))?;
        let pieces = Pieces::new(Core::new(&guest));
        let dump = Self {
            pieces,
            pause,
            deadline,
        };
        Ok((dump, guest.kernel.remarks))
    }

    /// Reads the next part of the file, in a job of the queue.
    fn step(
        &mut self,
        target: &dyn Target,
        limit: Duration,
        form: Form,
    ) -> Result<Step, DumpError> {
        // A vCPU that waits for other vCPUs may still change the guest at the end of a run.
        if target.is_ending() {
            return Err(DumpError::Ended);
        }
        if self.pause.is_over() {
            return Err(DumpError::TooSlow(limit));
        }
        let mut out = Vec::new();
        let is_new = self
            .pieces
            .step(&Original(target), |piece| match (form, piece) {
                (Form::Sparse, piece) => sparse::add(piece, &mut out),
                (Form::Elf, Piece::Bytes(bytes)) => out.extend(bytes),
                (Form::Elf, Piece::Zeros(count)) => {
                    // A step has at most a megabyte.
                    let count = usize::try_from(count).unwrap_or(0);
                    out.resize(out.len() + count, 0);
                }
            })?;
        Ok(match is_new {
            true => Step::Bytes(out),
            false => Step::Complete,
        })
    }
}

/// Sends a dump.
struct Sending {
    operator: Operator,
    dump: Arc<Mutex<Dump>>,
    form: Form,
    limit: Duration,
    deadline: tokio::time::Instant,
    chunks: mpsc::Sender<Result<Bytes, DumpError>>,
}

impl Sending {
    /// Sends `first` and all steps of the dump of `bytes` bytes. Ends early if the client has gone.
    async fn send(self, first: Vec<u8>, bytes: u64) {
        let mut next: Result<Step, DumpError> = Ok(Step::Bytes(first));
        loop {
            let error = match (next, self.form) {
                (Ok(Step::Bytes(bytes)), _) => {
                    let sent = self.chunks.send(Ok(Bytes::from(bytes)));
                    match tokio::time::timeout_at(self.deadline, sent).await {
                        Ok(Ok(())) => {
                            next = self.step().await;
                            continue;
                        }
                        Ok(Err(_)) => return,
                        Err(_) => DumpError::TooSlow(self.limit),
                    }
                }
                (Ok(Step::Complete), Form::Elf) => return,
                (Ok(Step::Complete), Form::Sparse) => {
                    let mut last = Vec::new();
                    sparse::end(bytes, &mut last);
                    // An error means that the client has gone.
                    let _ = self.chunks.send(Ok(last.into())).await;
                    return;
                }
                (Err(error), _) => error,
            };
            let (form, chunks) = self.without_dump();
            let last = match form {
                Form::Elf => Err(error),
                Form::Sparse => {
                    let mut last = Vec::new();
                    sparse::fail(&error.to_string(), &mut last);
                    Ok(last.into())
                }
            };
            // An error means that the client has gone.
            let _ = chunks.send(last).await;
            return;
        }
    }

    /// Drops the dump, with the memory of its present step: a slow client may take the reason much later.
    fn without_dump(self) -> (Form, mpsc::Sender<Result<Bytes, DumpError>>) {
        (self.form, self.chunks)
    }

    /// The next step, as soon as the queue has room.
    async fn step(&self) -> Result<Step, DumpError> {
        let (limit, form) = (self.limit, self.form);
        loop {
            let dump = Arc::clone(&self.dump);
            let step = move |bench: &mut Bench<'_>| {
                let mut dump = dump.lock().unwrap_or_else(PoisonError::into_inner);
                dump.step(bench.target(), limit, form)
            };
            match self.operator.run(step).await {
                Ok(step) => return step,
                Err(problem) if problem.is(ProblemKind::Busy) => {
                    tokio::time::sleep(QUEUE_FULL).await;
                }
                Err(_) => return Err(DumpError::Ended),
            }
        }
    }
}

/// Response body with chunks from a channel.
#[derive(Debug)]
struct Chunks {
    taken: mpsc::Receiver<Result<Bytes, DumpError>>,
    /// The bytes to come, if known.
    left: Option<u64>,
}

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = DumpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DumpError>>> {
        let next = std::task::ready!(self.taken.poll_recv(context));
        if let (Some(left), Some(Ok(chunk))) = (&mut self.left, &next) {
            *left = left.saturating_sub(chunk.len() as u64);
        }
        Poll::Ready(next.map(|chunk| chunk.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
