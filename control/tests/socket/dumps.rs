//! Dumps: the file, the pause, and clients that hold a dump up.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use control_fake::RAM_BYTES;
use dump::SparseFile;
use dump::sparse::{self, News, ReceiveError};
use hyprobe_control::api::{AddProbe, AddProbes, MachineState};

use crate::rig::{PATIENCE, Rig};

struct Quiet;

impl News for Quiet {
    fn progress(&self, _: u64, _: u64) {}
    fn remark(&self, _: &str) {}
}

fn wait_until_running(rig: &Rig) {
    let began = Instant::now();
    while rig.straw.paused.load(Ordering::SeqCst) != 0 {
        assert!(began.elapsed() < PATIENCE, "the machine stays paused");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Requests a dump, and reads until the first bytes of the file have arrived.
fn begin(rig: &Rig, query: &str) -> UnixStream {
    let mut stream = rig.connect();
    let request = format!("GET /dump{query} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut head = [0; 256];
    stream.read_exact(&mut head).expect("an answer");
    assert!(head.starts_with(b"HTTP/1.1 200"), "{head:?}");
    stream
}

#[test]
fn frames_of_a_dump_become_a_core_file() {
    let rig = Rig::new();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let sparse = SparseFile::regular(file.reopen().expect("open"));
    let mut frames = rig.client().dump(PATIENCE).expect("a dump");
    let size = sparse::receive(&mut frames, sparse, u64::MAX, &Quiet).expect("whole");
    let core = std::fs::read(file.path()).expect("read");
    assert_eq!(core.len() as u64, size);
    assert!(core.starts_with(b"\x7fELF"));
    let ram = usize::try_from(RAM_BYTES).expect("small");
    assert!(core[core.len() - ram..].iter().all(|byte| *byte == 0x5a));
    wait_until_running(&rig);
}

#[test]
fn elf_form_is_the_same_file_with_its_length() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    let request = b"GET /dump HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let (head, core) = answer.split_at(end.expect("a head") + 4);
    let head = String::from_utf8_lossy(head).to_lowercase();
    assert!(
        head.contains(&format!("content-length: {}\r\n", core.len())),
        "{head}"
    );
    assert!(core.starts_with(b"\x7fELF"));
    assert!(core.len() as u64 > RAM_BYTES);
}

#[test]
fn machine_is_paused_and_others_are_served_until_the_client_leaves() {
    let rig = Rig::new();
    let first = begin(&rig, "?form=sparse");
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 1);
    let client = rig.client();
    let machine = client.machine().expect("served");
    assert_eq!(machine.state, MachineState::Paused);
    let probe = AddProbes::One(AddProbe::new("kprobe:one"));
    client.add(&probe).expect("changes go on");
    rig.get("/dump").problem(503);
    // A client's resume does not end the pause of another client's dump.
    client.command("resume").expect("served");
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 1);
    drop(first);
    wait_until_running(&rig);
    assert_eq!(
        client.machine().expect("served").state,
        MachineState::Running
    );
}

#[test]
fn pause_of_a_client_outlasts_a_dump() {
    let rig = Rig::new();
    let client = rig.client();
    client.command("pause").expect("paused");
    drop(begin(&rig, ""));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 1);
    client.command("resume").expect("resumed");
    wait_until_running(&rig);
}

#[test]
fn slow_client_loses_the_dump_and_the_machine_resumes_at_the_limit() {
    let rig = Rig::new();
    let began = Instant::now();
    let mut frames = rig.client().dump(Duration::from_secs(1)).expect("a dump");
    wait_until_running(&rig);
    assert!(began.elapsed() >= Duration::from_secs(1));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let sparse = SparseFile::regular(file.reopen().expect("open"));
    let error = sparse::receive(&mut frames, sparse, u64::MAX, &Quiet).expect_err("too slow");
    assert!(matches!(error, ReceiveError::Failed(_)), "{error}");
    assert!(error.to_string().contains("a pause of 1 s"), "{error}");
    assert_eq!(file.as_file().metadata().expect("there").len(), 0);
}

/// A reader of events may stall without limit. The permission ends with the request, not with the connection.
#[test]
fn stalled_client_loses_the_dump_also_after_a_request_for_events() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    let events = b"GET /events?limit=0 HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(events).expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"0\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        answer.extend(byte);
    }
    let dump = b"GET /dump?pause_limit=3600 HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(dump).expect("sent");
    stream.read_exact(&mut [0; 64]).expect("an answer");
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 1);
    wait_until_running(&rig);
}

/// The remarks of a dump in which `looks` looks at the two vCPUs find a vCPU in a detour.
fn remarks_about_detours(rig: &Rig, looks: usize) -> Vec<String> {
    struct Remarks(std::cell::RefCell<Vec<String>>);
    impl News for Remarks {
        fn progress(&self, _: u64, _: u64) {}
        fn remark(&self, text: &str) {
            self.0.borrow_mut().push(text.to_owned());
        }
    }
    rig.straw.looks_in_detours.store(looks, Ordering::SeqCst);
    let mut frames = rig.client().dump(PATIENCE).expect("a dump");
    let file = SparseFile::stream(tempfile::tempfile().expect("a file"));
    let remarks = Remarks(std::cell::RefCell::default());
    sparse::receive(&mut frames, file, u64::MAX, &remarks).expect("whole");
    wait_until_running(rig);
    let mut remarks = remarks.0.into_inner();
    remarks.retain(|text| text.contains("hyprobe's code"));
    remarks
}

#[test]
fn dump_waits_until_vcpus_have_left_detours_and_says_if_they_do_not() {
    let rig = Rig::new();
    assert_eq!(remarks_about_detours(&rig, 5), [""; 0]);
    assert_eq!(rig.straw.looks_in_detours.load(Ordering::SeqCst), 0);
    let remarks = remarks_about_detours(&rig, usize::MAX);
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].contains("vCPUs 0, 1:"), "{remarks:?}");
}

#[test]
fn run_that_ends_fails_a_dump() {
    let rig = Rig::new();
    let mut frames = rig.client().dump(PATIENCE).expect("a dump");
    rig.straw.ending.store(true, Ordering::SeqCst);
    let file = SparseFile::stream(tempfile::tempfile().expect("a file"));
    let error = sparse::receive(&mut frames, file, u64::MAX, &Quiet).expect_err("the end");
    assert!(error.to_string().contains("the run is over"), "{error}");
}

#[test]
fn limits_and_forms_that_are_none_are_refused() {
    let rig = Rig::new();
    for query in ["pause_limit=0", "pause_limit=3601", "form=core", "limit=1"] {
        rig.get(&format!("/dump?{query}")).problem(400);
    }
    assert_eq!(rig.straw.paused.load(Ordering::SeqCst), 0);
}
