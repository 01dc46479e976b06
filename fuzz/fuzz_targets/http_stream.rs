//! Arbitrary bytes from a client on one connection to the control server: heads, chunks, several requests.

#![cfg_attr(fuzzing, no_main)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use control_fake::Straw;
use hyprobe_control::{EventHub, Incoming, Server};
use hyprobe_fuzz::fuzz_target;
use tokio::sync::mpsc;

/// Time without an answer, after which the client closes the sending direction. A server drops the request of a disconnected client, so a
/// longer time finds more, and takes longer for each input.
const QUIET: Duration = Duration::from_millis(5);
/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(50);
const HEAD_END: &[u8] = b"\r\n\r\n";

fuzz_target!(|bytes: &[u8]| {
    let (clients, incoming) = mpsc::channel(1);
    let hub = Arc::new(EventHub::default());
    // A stream of events ends at once.
    hub.end();
    let server = Server::start(Incoming::Trusted(incoming), Arc::new(Straw::default()), hub);
    let server = server.expect("a server");
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    clients.blocking_send(theirs).expect("the server runs");
    if let Some(answers) = exchange(ours, bytes) {
        check(&answers, bytes);
    }
    server.finish();
});

/// Sends the bytes, and reads the answers to the end of the connection. Returns `None` if the server has closed the connection before
/// reading all bytes: the host may drop answers then.
fn exchange(mut stream: UnixStream, bytes: &[u8]) -> Option<Vec<u8>> {
    // The server may have answered and closed before the request is complete.
    let _ = stream.write_all(bytes);
    let mut answers = Vec::new();
    stream.set_read_timeout(Some(QUIET)).expect("a timeout");
    let mut read = stream.read_to_end(&mut answers);
    if let Err(error) = &read
        && error.kind() == ErrorKind::WouldBlock
    {
        let _ = stream.shutdown(Shutdown::Write);
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        read = stream.read_to_end(&mut answers);
    }
    if let Err(error) = read {
        let is_reset = error.kind() == ErrorKind::ConnectionReset;
        assert!(is_reset, "the server does not answer: {error}");
        return None;
    }
    Some(answers)
}

/// Checks the answers in order. An answer to `HEAD` has a length and no body, so the check cannot find the next answer.
fn check(answers: &[u8], sent: &[u8]) {
    let has_head_request = sent.windows(4).any(|window| window == b"HEAD");
    let mut rest = answers;
    while !rest.is_empty() {
        let end = find(rest, HEAD_END).expect("an answer with a whole head");
        // The head ends with the end of the last line.
        let head = str::from_utf8(&rest[..end + 2]).expect("text");
        rest = &rest[end + HEAD_END.len()..];
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let status: u16 = status.expect("a status");
        assert!(status != 500, "{head}");
        if has_head_request {
            return;
        }
        rest = match value(head, "content-length") {
            Some(len) => {
                let len: usize = len.parse().expect("a length");
                assert!(len <= rest.len(), "the body is cut off: {head}");
                &rest[len..]
            }
            None if value(head, "transfer-encoding") == Some("chunked") => behind_chunks(rest),
            // An older client's body ends with the connection.
            None if head.starts_with("HTTP/1.0") => &[],
            None => {
                assert!(status < 200 || status == 204, "no length: {head}");
                rest
            }
        };
    }
}

/// The bytes behind a body in chunks.
fn behind_chunks(mut rest: &[u8]) -> &[u8] {
    loop {
        let end = find(rest, b"\r\n").expect("a line with a chunk's length");
        let len = str::from_utf8(&rest[..end]).expect("text");
        let len = usize::from_str_radix(len, 16).expect("a length");
        let chunk = &rest[end + 2..];
        assert!(len + 2 <= chunk.len(), "a chunk is cut off");
        rest = &chunk[len + 2..];
        if len == 0 {
            return rest;
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The value of a header.
fn value<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| {
        let (known, value) = line.split_once(": ")?;
        known.eq_ignore_ascii_case(name).then_some(value)
    })
}
