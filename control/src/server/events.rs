//! The stream of events: server-sent events or JSON lines.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use events::Event;
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use utoipa::IntoParams;

use super::app::App;
use super::body::QueryParams;
use super::pacing::Patience;
use crate::api::{EventLine, Lost, Problem, ProblemKind, ServerSentEvent};
use crate::hub::EventHub;
use crate::limits::EVENT_STREAMS;

/// Maximum number of events per chunk.
const BATCH: usize = 64;
/// Time without events, after which a reader gets an empty comment or line, so that intermediaries notice a broken connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Query of the event stream: the first event and the number of events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Sequence number of the first event; the default is the next event. Events no longer retained are reported as lost.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    from: Option<u64>,
    /// Number of events after which the stream ends; without a limit by default.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    limit: Option<u64>,
}

/// Header of a browser to resume the stream after an interruption.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
struct EventsHeaders {
    /// Sequence number of the last received event: the stream resumes with the next event. `from` takes precedence.
    #[param(
        rename = "Last-Event-ID",
        required = false,
        maximum = 18_446_744_073_709_551_615_u64
    )]
    last_event_id: u64,
}

impl EventsHeaders {
    /// Reads the header; `None` if absent. An id that is no number is an error: otherwise the reader would lose events silently.
    fn read(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let Some(id) = headers.get(LAST_EVENT_ID) else {
            return Ok(None);
        };
        let number = id.to_str().ok().and_then(|id| id.parse().ok());
        let wrong = || ProblemKind::Malformed.with("`Last-Event-ID` is the number of an event");
        number
            .map(|last_event_id| Some(Self { last_event_id }))
            .ok_or_else(wrong)
    }
}

const LAST_EVENT_ID: &str = "last-event-id";

/// Streams events until the run ends or the client disconnects.
///
/// If `Accept` asks for `application/x-ndjson`, `application/jsonl` or `application/json`, the stream has JSON lines, otherwise
/// server-sent events. A reader that is too slow gets the number of lost events; the guest never waits for a reader.
#[utoipa::path(get, path = "/events", tag = "events",
    params(EventsQuery, EventsHeaders),
    responses((status = 200, description = "The stream", content(
            (ServerSentEvent = "text/event-stream"), (EventLine = "application/x-ndjson"))),
        (status = 400, description = "The query or the header is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Too many streams already", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stream(
    State(app): State<Arc<App>>,
    Extension(patience): Extension<Patience>,
    headers: HeaderMap,
    QueryParams(query): QueryParams<EventsQuery>,
) -> Result<Response, Problem> {
    let resumed = EventsHeaders::read(&headers)?.map(|read| read.last_event_id.saturating_add(1));
    let room = Arc::clone(&app.streams).try_acquire_owned().map_err(|_| {
        ProblemKind::Busy.with(format!("{EVENT_STREAMS} clients read events already"))
    })?;
    patience.grant();
    let (_, next) = app.hub.numbers();
    let reader = Reader {
        hub: Arc::clone(&app.hub),
        format: Format::accepted(&headers),
        next: query.from.or(resumed).unwrap_or(next).max(1),
        left: query.limit.unwrap_or(u64::MAX),
        ended: false,
        _room: room,
    };
    let content = reader.format.content_type();
    let (chunks, taken) = mpsc::channel(1);
    tokio::spawn(reader.send(chunks));
    let body = Body::new(Chunks(taken));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Output format of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    ServerSent,
    Lines,
}

const LINES: [&str; 3] = [
    "application/x-ndjson",
    "application/jsonl",
    "application/json",
];

impl Format {
    fn accepted(headers: &HeaderMap) -> Self {
        let accepts = headers.get_all(header::ACCEPT).iter();
        let mut kinds = accepts
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|kind| kind.split(';').next().unwrap_or_default().trim());
        let known = kinds.find_map(|kind| match kind {
            "text/event-stream" => Some(Self::ServerSent),
            _ if LINES.contains(&kind) => Some(Self::Lines),
            _ => None,
        });
        known.unwrap_or(Self::ServerSent)
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::ServerSent => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }

    fn event(self, seq: u64, event: &Event, out: &mut Vec<u8>) {
        let kind = match event {
            Event::Hit(_) => "hit",
            Event::Return(_) => "return",
            Event::Note(_) => "note",
            Event::Summary(_) => "summary",
        };
        if self == Self::ServerSent {
            out.extend_from_slice(format!("id: {seq}\nevent: {kind}\ndata: ").as_bytes());
        }
        write(&Numbered { seq, event }, out);
        self.end(out);
    }

    fn lost(self, lost: Lost, out: &mut Vec<u8>) {
        if self == Self::ServerSent {
            out.extend_from_slice(b"event: lost\ndata: ");
        }
        write(&EventLine::Lost(lost), out);
        self.end(out);
    }

    fn end(self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self {
            Self::ServerSent => b"\n\n",
            Self::Lines => b"\n",
        });
    }
}

/// [`EventLine::Event`] with a borrowed event, to serialize without a copy.
#[derive(Debug, Serialize)]
struct Numbered<'e> {
    seq: u64,
    #[serde(flatten)]
    event: &'e Event,
}

fn write(line: &impl Serialize, out: &mut Vec<u8>) {
    let before = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, line) {
        tracing::error!(%error, "an event cannot be written");
        out.truncate(before);
    }
}

/// A client's cursor in the ring.
struct Reader {
    hub: Arc<EventHub>,
    format: Format,
    next: u64,
    left: u64,
    ended: bool,
    _room: OwnedSemaphorePermit,
}

impl Reader {
    /// The next chunk of the stream; `None` at the end.
    async fn chunk(&mut self) -> Option<Bytes> {
        if self.ended || self.left == 0 {
            return None;
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(BATCH);
        let read = self.hub.read(self.next, most);
        let Ok(batch) = tokio::time::timeout(KEEP_ALIVE, read).await else {
            return Some(Bytes::from_static(match self.format {
                Format::ServerSent => b":\n\n",
                Format::Lines => b"\n",
            }));
        };
        let mut out = Vec::new();
        if batch.lost > 0 {
            let lost = Lost {
                lost: batch.lost,
                next: batch.first,
            };
            self.format.lost(lost, &mut out);
        }
        for (seq, event) in (batch.first..).zip(&batch.events) {
            self.format.event(seq, event, &mut out);
        }
        let read = batch.events.len() as u64;
        self.next = batch.first + read;
        self.left -= read;
        self.ended = batch.ended;
        match out.is_empty() {
            true => None,
            false => Some(out.into()),
        }
    }

    /// Sends all chunks until the stream ends or the client disconnects. A chunk waits until the client has taken the earlier chunks.
    async fn send(mut self, chunks: mpsc::Sender<Bytes>) {
        loop {
            let chunk = tokio::select! {
                chunk = self.chunk() => chunk,
                () = chunks.closed() => return,
            };
            let Some(chunk) = chunk else { return };
            if chunks.send(chunk).await.is_err() {
                return;
            }
        }
    }
}

/// Response body with chunks from a channel.
#[derive(Debug)]
struct Chunks(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(context);
        next.map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

#[cfg(test)]
mod tests {
    use events::Note;

    use super::*;

    fn accepting(accept: &'static str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        Format::accepted(&headers)
    }

    #[test]
    fn accept_decides_and_server_sent_events_are_the_default() {
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::ServerSent);
        assert_eq!(accepting("*/*"), Format::ServerSent);
        assert_eq!(accepting("application/x-ndjson"), Format::Lines);
        assert_eq!(
            accepting("text/html, application/jsonl;q=0.9"),
            Format::Lines
        );
        assert_eq!(
            accepting("text/event-stream, application/x-ndjson"),
            Format::ServerSent
        );
    }

    #[test]
    fn both_forms() {
        let event = Event::Note(Note {
            ts_ns: 1,
            probe: None,
            text: "a\nb".to_owned(),
        });
        let mut out = Vec::new();
        Format::ServerSent.event(7, &event, &mut out);
        Format::ServerSent.lost(Lost { lost: 2, next: 9 }, &mut out);
        let text = String::from_utf8(out).expect("utf-8");
        assert_eq!(
            text,
            "id: 7\nevent: note\ndata: {\"seq\":7,\"type\":\"note\",\"ts_ns\":1,\"text\":\"a\\nb\"}\n\n\
             event: lost\ndata: {\"lost\":2,\"next\":9}\n\n"
        );
        let mut out = Vec::new();
        Format::Lines.event(7, &event, &mut out);
        let line: EventLine = serde_json::from_slice(&out).expect("json");
        assert_eq!(line, EventLine::Event { seq: 7, event });
    }
}
