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

/// Closes each connection behind its answer, which is the connection's number.
fn serve(listener: UnixListener, connections: usize) -> JoinHandle<()> {
    thread::spawn(move || {
        for number in 0..connections {
            let (mut stream, _) = listener.accept().expect("a client");
            read(&mut stream);
            answer(&mut stream, number);
        }
    })
}

#[test]
fn server_that_closes_connections_behind_answers_answers_each_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let server = serve(UnixListener::bind(&path).expect("a socket"), 10);
    let client = Client::new(&path).expect("a client");
    for number in 0..10 {
        let answered: Value = client
            .ask(Method::DELETE, "/", None::<&()>)
            .expect("answered");
        assert_eq!(answered, json!(number));
    }
    server.join().expect("it has answered");
}
