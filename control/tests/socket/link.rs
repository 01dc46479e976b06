//! Clients connected through the link of a nested run.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control_fake::Straw;
use events::{Event, EventSink as _, Note};
use hyprobe_control::api::{AddProbe, AddProbes};
use hyprobe_control::mux::{Inner, Outer};
use hyprobe_control::{Client, ControlSocket, EventHub, Incoming, Server};
use tempfile::TempDir;

use crate::rig::{PATIENCE, connect};

struct Nested {
    hub: Arc<EventHub>,
    server: Server,
    inner: Inner,
    outer: Outer,
    socket: ControlSocket,
    _folder: TempDir,
}

impl Nested {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("tempdir");
        let socket = ControlSocket::bind(&folder.path().join("x.sock")).expect("bound");
        let (near, far) = UnixStream::pair().expect("pair");
        let (inner, clients) = Inner::start(far).expect("inner");
        let hub = Arc::new(EventHub::default());
        let server = Server::start(clients, Arc::new(Straw::default()), hub.clone());
        let incoming = Incoming::Socket(socket.listener().expect("listener"));
        Self {
            hub,
            server: server.expect("server"),
            inner,
            outer: Outer::start(incoming, near).expect("outer"),
            socket,
            _folder: folder,
        }
    }

    fn client(&self) -> Client {
        Client::new(self.socket.path()).expect("client")
    }

    /// As at the end of a nested run.
    fn finish(self) {
        self.server.finish();
        self.inner.finish();
        self.outer.join();
    }
}

fn note(n: u64) -> Event {
    Event::Note(Note {
        ts_ns: n,
        probe: None,
        text: "x".repeat(1000),
    })
}

#[test]
fn fifty_clients_do_not_disturb_each_other() {
    let nested = Nested::new();
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let client = nested.client();
                for _ in 0..5 {
                    let asked = AddProbes::One(AddProbe::new("kprobe:one"));
                    let id = client
                        .add(&asked)
                        .expect("added")
                        .id
                        .expect("one")
                        .to_string();
                    client.remove(&id).expect("removed");
                }
            });
        }
    });
    assert_eq!(nested.client().probes().expect("list"), []);
    nested.finish();
}

#[test]
fn client_that_does_not_read_delays_no_other_client() {
    let nested = Nested::new();
    let mut deaf = connect(nested.socket.path());
    deaf.write_all(
        b"GET /events?from=1 HTTP/1.1\r\nhost: x\r\naccept: application/x-ndjson\r\n\r\n",
    )
    .expect("write");
    (0..60_000).for_each(|n| nested.hub.event(note(n)));
    nested.client().machine().expect("others are served");
    let mut chunk = vec![0; 1 << 16];
    let mut text = Vec::new();
    while !text.windows(8).any(|window| window == b"{\"lost\":") {
        let read = deaf.read(&mut chunk).expect("read");
        assert_ne!(read, 0, "the stream goes on");
        text.drain(..text.len().saturating_sub(8));
        text.extend_from_slice(&chunk[..read]);
    }
    nested.finish();
}

#[test]
fn disconnected_client_is_forgotten_on_both_sides() {
    let nested = Nested::new();
    for round in 0..300 {
        let mut stream = connect(nested.socket.path());
        let beginning: &[u8] = match round % 3 {
            0 => b"",
            1 => b"GET /machine HTT",
            _ => b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n",
        };
        // A client beyond the limit is refused, perhaps before the client has written.
        if let Err(error) = stream.write_all(beginning) {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        }
    }
    let began = Instant::now();
    while nested
        .client()
        .machine()
        .map_or(0, |machine| machine.connections)
        != 1
    {
        assert!(began.elapsed() < PATIENCE, "connections are left");
        std::thread::sleep(Duration::from_millis(50));
    }
    nested.finish();
}

#[test]
fn the_last_events_arrive_before_the_end() {
    let nested = Nested::new();
    let events = nested.client().events(Some(1)).expect("stream");
    let reading = std::thread::spawn(move || events.filter(Result::is_ok).count());
    (0..200).for_each(|n| nested.hub.event(note(n)));
    nested.finish();
    assert_eq!(reading.join().expect("reader"), 200);
}

#[test]
fn the_end_of_the_other_side_ends_every_connection() {
    let nested = Nested::new();
    let events = nested.client().events(None).expect("stream");
    let began = Instant::now();
    nested.finish();
    assert_eq!(events.filter(Result::is_ok).count(), 0);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "nobody has waited"
    );
}
