//! Requests to the control server: bodies, queries, and anything else.
//!
//! The input is text: requests with a line `---` between two requests. The first line of a request is method and path, and the body
//! follows.

#![cfg_attr(fuzzing, no_main)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use control_fake::Straw;
use hyprobe_control::api::Problem;
use hyprobe_control::{EventHub, Incoming, Server};
use hyprobe_fuzz::fuzz_target;
use tokio::sync::mpsc;

/// The maximum number of sent requests.
const REQUESTS: usize = 8;
/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(50);
const SEPARATOR: &[u8] = b"\n---\n";

fuzz_target!(|bytes: &[u8]| {
    let (clients, incoming) = mpsc::channel(REQUESTS);
    let hub = Arc::new(EventHub::default());
    // A stream of events ends at once.
    hub.end();
    let server = Server::start(Incoming::Trusted(incoming), Arc::new(Straw::default()), hub);
    let server = server.expect("a server");
    for request in split(bytes).take(REQUESTS) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        clients.blocking_send(theirs).expect("the server runs");
        if let Some(answer) = exchange(ours, request) {
            check(&answer, request.starts_with(b"HEAD "));
        }
    }
    server.finish();
});

fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let all = rest?;
        let end = all
            .windows(SEPARATOR.len())
            .position(|window| window == SEPARATOR);
        let request = &all[..end.unwrap_or(all.len())];
        rest = end.map(|end| &all[end + SEPARATOR.len()..]);
        Some(request)
    })
}

/// Sends a request, and reads the answer to the end of the connection. The client's end stays open, because a server drops the request of a
/// disconnected client. Returns `None` if the server has closed the connection before reading the whole request: the host may drop the
/// answer then.
fn exchange(mut stream: UnixStream, request: &[u8]) -> Option<Vec<u8>> {
    let line_end = request.iter().position(|byte| *byte == b'\n');
    let (line, body) = match line_end {
        Some(end) => (&request[..end], &request[end + 1..]),
        None => (request, &[][..]),
    };
    let len = body.len();
    let head =
        format!(" HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // The server may have answered and closed before the request is complete.
    let _ = stream.write_all(&[line, head.as_bytes(), body].concat());
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let is_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(is_reset, "the server does not answer: {error}");
        return None;
    }
    Some(answer)
}

fn check(answer: &[u8], is_head: bool) {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else {
        panic!("no whole head: {:?}", String::from_utf8_lossy(answer));
    };
    // The head ends with the end of the last line.
    let (head, body) = (&answer[..end + 2], &answer[end + 4..]);
    let head = str::from_utf8(head).expect("text").to_ascii_lowercase();
    let status = head
        .get(9..12)
        .and_then(|status| status.parse::<u16>().ok());
    let status = status.expect("a status");
    assert!(status != 500, "{head}");
    if is_head {
        assert!(body.is_empty(), "{head}");
        return;
    }
    match value(&head, "content-length") {
        Some(len) => assert_eq!(len, body.len().to_string(), "{head}"),
        // The last chunk is empty. Only a stream is sent in chunks.
        None => assert!(
            value(&head, "transfer-encoding") == Some("chunked") && body.ends_with(b"0\r\n\r\n"),
            "{head}"
        ),
    }
    let has = |kind: &str| head.contains(&format!("content-type: {kind}\r\n"));
    if has("application/problem+json") {
        let problem: Problem = serde_json::from_slice(body).expect("a problem");
        assert_eq!(problem.status, status);
        assert!(!problem.title.is_empty() && !problem.detail.is_empty());
    } else if has("application/json") {
        let value: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        assert!((200..300).contains(&status) && value.is_object(), "{head}");
    }
}

/// The value of a header.
fn value<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}
