use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;

use event_manager::{EventManager, SubscriberOps};

use super::*;
use crate::devices::bus::PortDevice;
use crate::devices::recording::Recorder;

/// Timeout with which the event loop returns at once if no event is pending.
const NO_WAIT_MS: i32 = 0;

struct Rig {
    events: EventManager<SerialInput>,
    serial: Arc<Serial>,
}

impl Rig {
    fn new(input: File) -> Self {
        let irq = Arc::new(Recorder::<()>::new());
        let serial = Arc::new(Serial::new(irq, Box::new(io::sink())).unwrap());
        let mut events = EventManager::new().unwrap();
        events.add_subscriber(SerialInput::new(Arc::clone(&serial), input));
        Self { events, serial }
    }

    fn with_pipe() -> (Self, PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        (Self::new(File::from(OwnedFd::from(reader))), writer)
    }

    /// Runs the event loop until the loop is idle; fails if the loop is never idle.
    fn settle(&mut self) {
        for _ in 0..100 {
            if self.events.run_with_timeout(NO_WAIT_MS).unwrap() == 0 {
                return;
            }
        }
        panic!("the event loop spins");
    }

    /// Empties the FIFO like a guest, and returns the bytes read.
    fn guest_reads(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while PortDevice::read(&*self.serial, 5) & 1 != 0 {
            bytes.push(PortDevice::read(&*self.serial, 0));
        }
        bytes
    }
}

#[test]
fn bytes_arrive() {
    let (mut rig, mut writer) = Rig::with_pipe();
    rig.settle();
    writer.write_all(b"uname\n").unwrap();
    rig.settle();
    assert_eq!(rig.guest_reads(), b"uname\n");
}

#[test]
fn a_slow_guest_loses_nothing() {
    let (mut rig, mut writer) = Rig::with_pipe();
    let sent: Vec<u8> = (0..1000_u16).map(|n| n.to_le_bytes()[0]).collect();
    writer.write_all(&sent).unwrap();
    let mut received = Vec::new();
    while received.len() < sent.len() {
        rig.settle();
        let bytes = rig.guest_reads();
        assert!(!bytes.is_empty());
        received.extend(bytes);
    }
    assert_eq!(received, sent);
}

#[test]
fn the_end_of_input_is_no_busy_loop() {
    let (mut rig, mut writer) = Rig::with_pipe();
    writer.write_all(b"x").unwrap();
    drop(writer);
    rig.settle();
    assert_eq!(rig.guest_reads(), b"x");
    rig.settle();
    assert_eq!(rig.guest_reads(), b"");
}

#[test]
fn regular_files_are_read_as_the_guest_asks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("input");
    std::fs::write(&path, [b'i'; 200]).unwrap();
    let mut rig = Rig::new(File::open(&path).unwrap());
    let mut received = 0;
    for _ in 0..5 {
        rig.settle();
        received += rig.guest_reads().len();
    }
    assert_eq!(received, 200);
}

#[test]
fn input_during_loopback_comes_afterwards() {
    let (mut rig, mut writer) = Rig::with_pipe();
    rig.settle();
    PortDevice::write(&*rig.serial, 4, 0x10);
    writer.write_all(b"late").unwrap();
    rig.settle();
    PortDevice::write(&*rig.serial, 4, 0);
    rig.settle();
    assert_eq!(rig.guest_reads(), b"late");
}
