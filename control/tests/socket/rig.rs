//! Test fixture: a server on its own socket, and clients that send raw bytes.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use control_fake::Straw;
use hyprobe_control::api::Problem;
use hyprobe_control::{Client, ControlSocket, EventHub, Incoming, Server};
use tempfile::TempDir;

/// Time limit of the tests, longer than any answer takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a fake machine.
pub(crate) struct Rig {
    pub(crate) straw: Arc<Straw>,
    pub(crate) hub: Arc<EventHub>,
    server: Option<Server>,
    // Dropped before the socket's folder.
    socket: Option<ControlSocket>,
    _folder: TempDir,
    path: PathBuf,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("x.sock");
        let socket = ControlSocket::bind(&path).expect("bound");
        let (straw, hub) = (Arc::new(Straw::default()), Arc::new(EventHub::default()));
        let incoming = Incoming::Socket(socket.listener().expect("listener"));
        let server = Server::start(incoming, straw.clone(), hub.clone()).expect("started");
        Self {
            straw,
            hub,
            server: Some(server),
            socket: Some(socket),
            _folder: folder,
            path,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.path).expect("client")
    }

    /// Ends the server, and then the socket, as a run does.
    pub(crate) fn finish(&mut self) {
        self.server.take().expect("once").finish();
        self.socket = None;
    }

    /// A new connection without a request.
    pub(crate) fn connect(&self) -> UnixStream {
        connect(&self.path)
    }

    /// Sends `bytes`, and reads the answer to the end of the connection.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The server may answer and close before reading all bytes.
        let _ = stream.write_all(bytes);
        Answer::read(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.raw(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let len = body.len();
        self.raw(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.finish();
        }
    }
}

pub(crate) fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

/// An answer, as text.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn read(mut stream: UnixStream) -> Self {
        let mut bytes = Vec::new();
        // After a reset, the bytes received before are the answer.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    /// Checks that the answer is a consistent problem document with the status `status`.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16) -> Problem {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.head.contains("application/problem+json"), "{self:?}");
        let problem: Problem = serde_json::from_str(&self.body).expect("a problem");
        assert_eq!(problem.status, status);
        assert!(!problem.title.is_empty() && !problem.detail.is_empty());
        problem
    }

    #[track_caller]
    pub(crate) fn json(&self, status: u16) -> serde_json::Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.body).expect("json")
    }
}
