//! Hostile clients.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use events::{Event, EventSink as _, Note};
use hyprobe_control::api::{AddProbe, AddProbes};
use hyprobe_control::limits;

use crate::rig::{Answer, Rig};

#[test]
fn malformed_bodies_are_refused_and_harmless() {
    let rig = Rig::new();
    for body in [
        "",
        "{",
        "[",
        "[]",
        "null",
        "7",
        "\"kprobe:one\"",
        "{}",
        "{\"spec\": 7}",
        "{\"spec\": \"kprobe:one\"} x",
        "{\"spec\": \"kprobe:one\", \"enabled\": \"yes\"}",
        "{\"spec\": \"kprobe:one\", \"maxactive\": 0}",
        "{\"spec\": \"kprobe:one\", \"maxactive\": 65536}",
        "{\"spec\": \"kprobe:one\", \"action\": \"reboot\"}",
        "[{\"spec\": \"kprobe:one\"}, 7]",
        "[[\"kprobe:one\"]]",
    ] {
        rig.send("POST", "/probes", body).problem(400);
    }
    rig.send("POST", "/probes", "{\"spec\": \"\"}").problem(422);
    // Nested deeper than a parser should follow.
    rig.send("POST", "/probes", &"[".repeat(100_000))
        .problem(400);
    rig.send("PUT", "/knobs", "{\"enabled\": 1}").problem(400);
    rig.send("PATCH", "/probes/1", "[]").problem(400);
    let many = vec![AddProbe::new("kprobe:one"); limits::PROBES_PER_REQUEST + 1];
    let many = serde_json::to_string(&AddProbes::Many(many)).expect("json");
    rig.send("POST", "/probes", &many).problem(400);
    assert_eq!(rig.client().probes().expect("list"), []);
}

#[test]
fn oversize_requests_are_refused_before_they_have_come() {
    let rig = Rig::new();
    let long = "x".repeat(limits::BODY_BYTES + 1);
    rig.send("POST", "/probes", &long).problem(413);
    // Chunked: without a length.
    let mut chunked = b"POST /probes HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..limits::BODY_BYTES / 0x1_0000 + 1 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b'x'; 0x1_0000]);
        chunked.extend_from_slice(b"\r\n");
    }
    rig.raw(&chunked).problem(413);
    // The server does not parse a head beyond the limit.
    let head = format!(
        "GET /probes HTTP/1.1\r\nx: {}\r\n\r\n",
        "x".repeat(64 << 10)
    );
    assert!(matches!(rig.raw(head.as_bytes()).status, 400 | 431));
    rig.client().machine().expect("it still serves");
}

#[test]
fn bytes_that_are_no_http_end_the_connection() {
    let rig = Rig::new();
    for bytes in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        assert!(matches!(rig.raw(bytes).status, 0 | 400), "{bytes:?}");
    }
    rig.client().machine().expect("it still serves");
}

/// Clients that send a byte now and then: the server limits the time of head and body, and serves other clients meanwhile.
#[test]
fn trickling_client_is_cut_off() {
    let rig = Rig::new();
    let slow = |beginning: &[u8]| {
        let mut stream = rig.connect();
        stream.write_all(beginning).expect("write");
        stream
    };
    let mut head = slow(b"GET /machine HTTP/1.1\r\n");
    let mut body = slow(
        b"POST /probes HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 100\r\n\r\n",
    );
    let began = Instant::now();
    let mut cut_off = 0;
    while cut_off < 2 {
        assert!(began.elapsed() < crate::rig::PATIENCE, "they trickle on");
        std::thread::sleep(Duration::from_millis(500));
        rig.client().machine().expect("others are served");
        cut_off = [head.write_all(b"x"), body.write_all(b" ")]
            .iter()
            .filter(|written| written.is_err())
            .count();
    }
    let answer = Answer::read(body);
    assert!(answer.status == 408 || answer.status == 0, "{answer:?}");
}

#[test]
fn fifty_clients_at_once_are_all_served() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let client = rig.client();
                for _ in 0..5 {
                    let added = client
                        .add(&AddProbes::One(AddProbe::new("kprobe:one")))
                        .expect("added");
                    let id = added.id.expect("one").to_string();
                    client.probe(&id).expect("shown");
                    client.remove(&id).expect("removed");
                }
            });
        }
    });
    assert_eq!(rig.client().probes().expect("list"), []);
}

#[test]
fn clients_beyond_the_limit_get_a_problem() {
    let rig = Rig::new();
    let idle: Vec<UnixStream> = (0..limits::CONNECTIONS).map(|_| rig.connect()).collect();
    let began = Instant::now();
    // The server accepts clients in the order of their connections.
    let problem = rig.get("/machine").problem(503);
    assert!(problem.detail.contains("64 clients"), "{problem:?}");
    drop(idle);
    while rig.get("/machine").status != 200 {
        assert!(
            began.elapsed() < crate::rig::PATIENCE,
            "the room is not given back"
        );
    }
}

fn note(n: u64) -> Event {
    Event::Note(Note {
        ts_ns: n,
        probe: None,
        text: "x".repeat(1000),
    })
}

/// A client that does not read events delays neither vCPUs nor other clients. Later, the client reads the number of lost events.
#[test]
fn client_that_never_reads_gets_lost_count() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    stream
        .write_all(
            b"GET /events?from=1 HTTP/1.1\r\nhost: x\r\naccept: application/x-ndjson\r\n\r\n",
        )
        .expect("write");
    let began = Instant::now();
    // More than the socket and the ring hold.
    (0..60_000).for_each(|n| rig.hub.event(note(n)));
    assert!(
        began.elapsed() < crate::rig::PATIENCE,
        "the writer has waited"
    );
    rig.client().machine().expect("others are served");
    let mut text = Vec::new();
    let mut chunk = [0; 1 << 16];
    while !text.windows(8).any(|window| window == b"{\"lost\":") {
        let read = stream.read(&mut chunk).expect("read");
        assert_ne!(read, 0, "the stream goes on");
        text.drain(..text.len().saturating_sub(8));
        text.extend_from_slice(&chunk[..read]);
    }
}

/// The server closes a connection if the client does not read the answer.
#[test]
fn client_that_reads_no_answer_is_cut_off() {
    let rig = Rig::new();
    let probes = vec![AddProbe::new("kprobe:many_*"); 1000];
    rig.client().add(&AddProbes::Many(probes)).expect("added");
    let mut stream = rig.connect();
    let began = Instant::now();
    while rig.client().machine().expect("machine").connections > 2 {
        std::thread::yield_now();
    }
    // Far more than a socket holds.
    stream
        .write_all(b"GET /probes?limit=10000 HTTP/1.1\r\nhost: x\r\n\r\n")
        .expect("write");
    let alone = |rig: &Rig| rig.client().machine().expect("machine").connections == 1;
    while !alone(&rig) {
        assert!(
            began.elapsed() < crate::rig::PATIENCE,
            "it is still connected"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(began.elapsed() > Duration::from_secs(5), "it had its time");
}

#[test]
fn client_that_disconnects_within_a_request_leaks_no_file() {
    let rig = Rig::new();
    let files = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
    rig.client().machine().expect("machine");
    let before = files();
    for round in 0..200 {
        let mut stream = rig.connect();
        let beginning: &[u8] = match round % 4 {
            0 => b"",
            1 => b"GET /machine HTT",
            2 => b"POST /probes HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"spec\"",
            _ => b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n",
        };
        stream.write_all(beginning).expect("write");
        drop(stream);
    }
    let began = Instant::now();
    // Other tests of the same process open and close files, too.
    // Until the server notices the closed connections, there may be no room for a request.
    let others = || {
        rig.client()
            .machine()
            .map_or(1, |machine| machine.connections - 1)
    };
    while others() > 0 || files() > before + 40 {
        assert!(began.elapsed() < crate::rig::PATIENCE, "{} files", files());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A change runs to its end even if the client has disconnected.
#[test]
fn client_that_disconnects_before_the_answer_leaves_no_name() {
    let rig = Rig::new();
    let named = "{\"spec\": \"kprobe:one\", \"name\": \"mine\"}";
    for path in ["/probes/mine", "/probes"] {
        rig.send("POST", "/probes", named).json(201);
        *rig.straw.slow.lock().expect("lock") = Duration::from_millis(300);
        let mut stream = rig.connect();
        let request = format!("DELETE {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("write");
        std::thread::sleep(Duration::from_millis(100));
        drop(stream);
        let began = Instant::now();
        while rig.get("/probes").json(200)["total"] != 0 {
            assert!(began.elapsed() < crate::rig::PATIENCE, "it is not removed");
            std::thread::sleep(Duration::from_millis(20));
        }
        *rig.straw.slow.lock().expect("lock") = Duration::ZERO;
        rig.send("POST", "/probes", named).json(201);
        rig.send("DELETE", "/probes/mine", "").json(200);
    }
}

#[test]
fn too_many_streams_leave_room_for_requests() {
    let rig = Rig::new();
    let streams: Vec<_> = (0..limits::EVENT_STREAMS)
        .map(|_| rig.client().events(None).expect("stream"))
        .collect();
    rig.get("/events").problem(503);
    rig.client().machine().expect("requests are served");
    drop(streams);
}

#[test]
fn changes_that_pile_up_are_refused() {
    let rig = Rig::new();
    *rig.straw.slow.lock().expect("lock") = Duration::from_millis(300);
    let rig = Arc::new(rig);
    let body = r#"{"spec": "kprobe:one"}"#;
    // Each connection has one change in progress; the server loses none.
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..60)
            .map(|_| scope.spawn(|| rig.send("POST", "/probes", body).status))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("client"))
            .collect()
    });
    let added = answers.iter().filter(|status| **status == 201).count();
    let refused = answers.iter().filter(|status| **status == 503).count();
    assert_eq!(added + refused, 60, "{answers:?}");
    assert_eq!(rig.client().probes().expect("list").len(), added);
}
