use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use super::*;

#[test]
fn special_characters_of_an_address_are_encoded() {
    assert_eq!(encoded("a-b_c.7"), "a-b_c.7");
    assert_eq!(encoded("vfs_*/?ä"), "vfs_%2A%2F%3F%C3%A4");
}

/// Reads a request without a body.
fn read(stream: &mut UnixStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        head.push(byte[0]);
    }
}

fn answer(stream: &mut UnixStream, number: usize) {
    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}");
    stream.write_all(text.as_bytes()).expect("a client");
}

/// Answers the first request of each connection with the connection's number, and closes the connection when a second one arrives, as a server
/// may do that has taken the connection for idle.
fn serve(listener: UnixListener, connections: usize) -> JoinHandle<()> {
    thread::spawn(move || {
        for number in 0..connections {
            let (mut stream, _) = listener.accept().expect("a client");
            read(&mut stream);
            answer(&mut stream, number);
            // The next client waits until this connection has ended, or has a second request.
            let _ = stream.read(&mut [0]);
        }
    })
}

#[test]
fn changes_are_answered_by_a_server_that_answers_one_request_of_a_connection() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let server = serve(UnixListener::bind(&path).expect("a socket"), 3);
    let client = Client::new(&path).expect("a client");
    for number in 0..3 {
        let answered: Value = client
            .ask(Method::DELETE, "/", None::<&()>)
            .expect("answered");
        assert_eq!(answered, json!(number));
    }
    server.join().expect("it has answered");
}

#[test]
fn answer_arrives_though_the_server_takes_no_more_bytes_of_the_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        read(&mut stream);
        answer(&mut stream, 7);
        // Until the client closes.
        let mut hold = [0; 4096];
        let mut taken = 0;
        thread::sleep(Duration::from_millis(200));
        while let Ok(len @ 1..) = stream.read(&mut hold) {
            taken += len;
        }
        taken
    });
    let client = Client::new(&path).expect("a client");
    let long = "x".repeat(4 << 20);
    let answered: Value = client
        .ask(Method::POST, "/", Some(&long))
        .expect("answered");
    assert_eq!(answered, json!(7));
    assert!(server.join().expect("it has answered") < long.len());
}
