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

/// A server that answers with the number of the connection, and closes the first connection behind an answer, before or after it has read
/// another request.
struct Server {
    folder: tempfile::TempDir,
    first_is_closed: JoinHandle<()>,
}

impl Server {
    fn start(reads_again: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("a socket");
        let first_is_closed = thread::spawn(move || {
            let (mut first, _) = listener.accept().expect("a client");
            read(&mut first);
            answer(&mut first, 1);
            if reads_again {
                read(&mut first);
            }
            drop(first);
            thread::spawn(move || {
                let (mut second, _) = listener.accept().expect("a client");
                read(&mut second);
                answer(&mut second, 2);
            });
        });
        Self {
            folder,
            first_is_closed,
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.folder.path().join("socket")).expect("a client")
    }
}

#[test]
fn request_after_the_server_has_closed_the_connection_connects_again() {
    let server = Server::start(false);
    let mut client = server.client();
    let first: Value = client.ask(Method::GET, "/", None::<&()>).expect("answered");
    server.first_is_closed.join().expect("it is closed");
    let second: Value = client
        .ask(Method::DELETE, "/", None::<&()>)
        .expect("answered");
    assert_eq!((first, second), (json!(1), json!(2)));
}

#[test]
fn question_that_the_server_has_not_answered_is_asked_again() {
    let server = Server::start(true);
    let mut client = server.client();
    let mut ask = || -> Value { client.ask(Method::GET, "/", None::<&()>).expect("answered") };
    assert_eq!((ask(), ask()), (json!(1), json!(2)));
}

#[test]
fn change_that_the_server_has_read_is_not_sent_again() {
    let server = Server::start(true);
    let mut client = server.client();
    let first: Value = client.ask(Method::GET, "/", None::<&()>).expect("answered");
    assert_eq!(first, json!(1));
    let error = client
        .ask::<Value>(Method::DELETE, "/", None::<&()>)
        .expect_err("the change may have been made");
    assert!(matches!(error, ClientError::Broken(_)), "{error}");
}
