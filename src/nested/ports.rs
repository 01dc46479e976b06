//! The launcher's ends of the ports: a thread each, and the results so far.
//!
//! The threads of the output ports end with QEMU, because only QEMU holds the other ends.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use confine::ThreadKind;
use dump::sparse::{self, News};
use errors::chain;
use events::{Event, EventSink};
use rustix::event::{PollFd, PollFlags, poll};

use super::lines::{LineError, read_line};
use super::phase::Facts;
use super::protocol::{Outcome, Port, Sent, ToOuter};
use crate::report::printable;
use crate::run::crash_dump::CoreWriter;

/// A hit has about 700 bytes; a note may quote a long list of symbols.
const MAX_EVENT_BYTES: u64 = 1 << 20;
/// A summary has about 200 bytes for each probe.
const MAX_CONTROL_BYTES: u64 = 64 << 20;
const CHUNK_BYTES: usize = 16 << 10;
/// The period after which a thread that waits for room checks whether the run ends.
const ROOM_LOOK: Duration = Duration::from_millis(50);

/// The messages and counts of the ports so far.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Milliseconds from the outer kernel's start to the run's start, if the run has started.
    pub(super) started: Option<u64>,
    /// The run ends: the last output is read without waiting for room.
    pub(super) ending: bool,
    /// The outcome of the run, and the number of bytes written before it.
    pub(super) finished: Option<(Outcome, Sent)>,
    /// The number of bytes that have arrived.
    pub(super) arrived: Sent,
    /// The bytes of the core file that have arrived in valid frames.
    pub(super) dumped: u64,
    /// The first violation of the protocol.
    pub(super) violation: Option<(Port, LineError)>,
}

impl Received {
    /// Whether all bytes that the run wrote before its end have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.finished.as_ref().is_some_and(|(_, sent)| {
            self.arrived.events >= sent.events
                && self.arrived.console >= sent.console
                && self.arrived.clients >= sent.clients
                && self.arrived.dump >= sent.dump
        })
    }
}

/// [`Received`], shared between the ports' threads and the waiting thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox {
    shared: Arc<(Mutex<Received>, Condvar)>,
}

impl Inbox {
    /// Locks the results.
    pub(super) fn lock(&self) -> MutexGuard<'_, Received> {
        // A panic leaves no half change: each change is plain assignments.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the results differ from `known`, at most for `limit`.
    pub(super) fn wait_for_news(&self, known: &Facts, limit: Duration) {
        let nothing_new = |received: &mut Received| {
            received.started.is_some() == known.started
                && received.finished.is_some() == known.finished
                && received.is_complete() == known.complete
                && received.violation.is_some() == known.violation
        };
        let (mutex, condvar) = &*self.shared;
        let received = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        drop(condvar.wait_timeout_while(received, limit, nothing_new));
    }

    fn change(&self, change: impl FnOnce(&mut Received)) {
        let mut received = self.lock();
        change(&mut received);
        self.shared.1.notify_one();
    }

    /// Makes the threads of the output ports read on without room. Called when the guest has ended, or QEMU has.
    pub(super) fn note_ending(&self) {
        self.change(|received| received.ending = true);
    }

    /// Waits until `sink` has room, or the run ends. While a port is not read, the inner run keeps its guest waiting.
    fn await_room(&self, sink: &dyn EventSink) {
        while !sink.has_room() && !self.lock().ending {
            sink.await_room(ROOM_LOOK);
        }
    }

    fn violation(&self, port: Port, error: LineError) {
        self.change(|received| {
            received.violation.get_or_insert((port, error));
        });
    }
}

/// Follows the control port.
pub(super) fn follow_control(port: UnixStream, inbox: Inbox) -> io::Result<JoinHandle<()>> {
    named("nested-control", move || {
        let mut port = BufReader::new(port);
        let mut buffer = Vec::new();
        loop {
            match read_line(&mut port, &mut buffer, MAX_CONTROL_BYTES) {
                Ok(Some((ToOuter::Started { uptime_ms }, _))) => {
                    inbox.change(|received| received.started = Some(uptime_ms));
                }
                Ok(Some((ToOuter::Ending, _))) => inbox.note_ending(),
                Ok(Some((ToOuter::Finished { outcome, sent }, _))) => {
                    inbox.change(|received| {
                        received.ending = true;
                        received.finished = Some((outcome, sent));
                    });
                }
                Ok(None) => return,
                Err(error) => return inbox.violation(Port::Control, error),
            }
        }
    })
}

/// Gives the events to `sink`.
pub(super) fn follow_events(
    port: UnixStream,
    inbox: Inbox,
    sink: Arc<dyn EventSink>,
) -> io::Result<JoinHandle<()>> {
    named("nested-events", move || {
        let mut port = BufReader::with_capacity(1 << 16, port);
        let mut buffer = Vec::new();
        loop {
            inbox.await_room(sink.as_ref());
            match read_line::<Event>(&mut port, &mut buffer, MAX_EVENT_BYTES) {
                Ok(Some((event, bytes))) => {
                    sink.event(event);
                    inbox.change(|received| received.arrived.events += bytes);
                }
                Ok(None) => return,
                Err(error) => return inbox.violation(Port::Events, error),
            }
        }
    })
}

/// Copies the guest's output to `console`, which has room if `sink` has room. Reads on after a failed write: a closed console is
/// no reason to stop the guest.
pub(super) fn follow_console(
    mut port: UnixStream,
    inbox: Inbox,
    mut console: Box<dyn Write + Send>,
    sink: Arc<dyn EventSink>,
) -> io::Result<JoinHandle<()>> {
    named("nested-console", move || {
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(read @ 1..) = port.read(&mut chunk) {
            inbox.await_room(sink.as_ref());
            let _ = console
                .write_all(&chunk[..read])
                .and_then(|()| console.flush());
            let bytes = u64::try_from(read).unwrap_or(u64::MAX);
            inbox.change(|received| received.arrived.console += bytes);
        }
    })
}

/// Copies the answers to the clients of the control socket.
pub(super) fn follow_clients(
    mut port: UnixStream,
    inbox: Inbox,
    mut clients: UnixStream,
) -> io::Result<JoinHandle<()>> {
    named("nested-to-clients", move || {
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(read @ 1..) = port.read(&mut chunk) {
            // An error means that all clients have gone. The answers are read on.
            let _ = clients.write_all(&chunk[..read]);
            let bytes = u64::try_from(read).unwrap_or(u64::MAX);
            inbox.change(|received| received.arrived.clients += bytes);
        }
        // An error means that all clients have gone.
        let _ = clients.shutdown(Shutdown::Both);
    })
}

/// Copies the clients' requests to the port, until either is at its end.
pub(super) fn send_clients(mut clients: UnixStream, mut port: UnixStream) -> io::Result<()> {
    named("nested-from-clients", move || {
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(read @ 1..) = clients.read(&mut chunk) {
            if port.write_all(&chunk[..read]).is_err() {
                return;
            }
        }
    })
    .map(drop)
}

/// Receives the dump of a guest that has crashed into `core`, a core file of at most `most` bytes.
pub(super) fn follow_dump(
    port: UnixStream,
    inbox: Inbox,
    core: CoreWriter,
    most: u64,
) -> io::Result<JoinHandle<()>> {
    named("nested-dump", move || {
        let news = DumpNews(inbox.clone());
        let mut port = BufReader::with_capacity(1 << 16, DumpPort { port, inbox });
        // Without a crash, the port is at its end.
        if !port.fill_buf().is_ok_and(|bytes| !bytes.is_empty()) {
            return;
        }
        let received = core.write(|file| sparse::receive(&mut port, file, most, &news));
        if let Err(error) = received {
            news.remark(&format!("no dump of the crash: {}", chain(&error)));
            // The rest is read: the run inside does not wait.
            let _ = io::copy(&mut port, &mut io::sink());
        }
    })
}

/// Counts the bytes of a dump.
struct DumpPort {
    port: UnixStream,
    inbox: Inbox,
}

impl Read for DumpPort {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.port.read(buf)?;
        let bytes = u64::try_from(read).unwrap_or(u64::MAX);
        self.inbox.change(|received| received.arrived.dump += bytes);
        Ok(read)
    }
}

/// Counts the bytes of the core file, and prints what is missing in a dump.
struct DumpNews(Inbox);

impl News for DumpNews {
    fn progress(&self, done: u64, _: u64) {
        self.0.change(|received| received.dumped = done);
    }

    fn remark(&self, text: &str) {
        crate::stderr::say(format_args!("hyprobe: {}", printable(text)));
    }
}

/// Copies the inner hyprobe's messages to standard error.
pub(super) fn follow_log(mut port: UnixStream) -> io::Result<JoinHandle<()>> {
    named("nested-log", move || {
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(read @ 1..) = port.read(&mut chunk) {
            crate::stderr::write(&chunk[..read]);
        }
    })
}

/// Runs `follow` on a new thread of the kind [`ThreadKind::Ports`].
pub(super) fn named(
    name: &str,
    follow: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let follow = || {
        confine::enter(ThreadKind::Ports);
        follow();
    };
    thread::Builder::new().name(name.to_owned()).spawn(follow)
}

/// A thread that copies typed bytes to the guest, until the value is dropped.
#[derive(Debug)]
pub(super) struct Typing {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Typing {
    /// Copies `input` to `port`, until either is at its end.
    pub(super) fn start(input: File, mut port: UnixStream) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = named("nested-typing", move || {
            // Without the second descriptor, the thread would wait for the terminal and take the next line that the
            // user types after the run.
            while is_readable(&input, &stopped) {
                let mut chunk = [0; CHUNK_BYTES];
                match (&input).read(&mut chunk) {
                    Ok(read @ 1..) if port.write_all(&chunk[..read]).is_ok() => {}
                    _ => return,
                }
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Typing {
    fn drop(&mut self) {
        // An error means that the thread has ended by itself.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until `input` has bytes or is at its end. Returns `false` if `stopped` is at its end.
fn is_readable(input: &File, stopped: &UnixStream) -> bool {
    let mut fds = [
        PollFd::new(input, PollFlags::IN),
        PollFd::new(stopped, PollFlags::IN),
    ];
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return fds[1].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;

    use events::Note;

    use super::*;

    #[derive(Debug)]
    struct Notes(Mutex<mpsc::Sender<Event>>);

    impl EventSink for Notes {
        fn event(&self, event: Event) {
            let _ = self.0.lock().expect("lock").send(event);
        }
    }

    #[test]
    fn events_arrive_and_are_counted_and_the_first_violation_is_kept() {
        let (port, mut inner) = UnixStream::pair().expect("pair");
        let (sender, events) = mpsc::channel();
        let inbox = Inbox::default();
        let thread = follow_events(port, inbox.clone(), Arc::new(Notes(Mutex::new(sender))))
            .expect("thread");
        let note = Event::Note(Note {
            ts_ns: 1,
            probe: None,
            text: "x".into(),
        });
        let line = serde_json::to_string(&note).expect("json") + "\n";
        inner.write_all(line.as_bytes()).expect("write");
        inner.write_all(b"{\"type\":\"no\"}\n").expect("write");
        thread.join().expect("thread");
        assert_eq!(events.recv().expect("event"), note);
        let received = inbox.lock();
        assert_eq!(received.arrived.events, line.len() as u64);
        assert!(matches!(
            received.violation,
            Some((Port::Events, LineError::Parse { .. }))
        ));
    }

    /// Has no room, and counts what comes nevertheless.
    #[derive(Debug, Default)]
    struct Full(std::sync::atomic::AtomicUsize);

    impl EventSink for Full {
        fn event(&self, _event: Event) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }

        fn has_room(&self) -> bool {
            false
        }

        fn await_room(&self, limit: Duration) {
            thread::sleep(limit);
        }
    }

    #[test]
    fn port_is_read_without_room_only_when_the_run_ends() {
        let (port, mut inner) = UnixStream::pair().expect("pair");
        let (inbox, full) = (Inbox::default(), Arc::new(Full::default()));
        let thread = follow_events(port, inbox.clone(), full.clone()).expect("thread");
        let note = Event::Note(Note {
            ts_ns: 1,
            probe: None,
            text: "x".into(),
        });
        let line = serde_json::to_string(&note).expect("json") + "\n";
        inner.write_all(line.as_bytes()).expect("write");
        drop(inner);
        thread::sleep(ROOM_LOOK * 4);
        assert!(!thread.is_finished());
        assert_eq!(full.0.load(std::sync::atomic::Ordering::SeqCst), 0);
        inbox.note_ending();
        thread.join().expect("thread");
        assert_eq!(full.0.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert_eq!(inbox.lock().arrived.events, line.len() as u64);
    }

    #[test]
    fn the_end_is_complete_when_all_bytes_are_here() {
        let (port, mut inner) = UnixStream::pair().expect("pair");
        let inbox = Inbox::default();
        let sent = Sent {
            events: 0,
            console: 5,
            clients: 0,
            dump: 0,
        };
        let failure = super::super::protocol::InnerFailure::message(3, "x".into());
        inbox.change(|received| received.finished = Some((Outcome::Failure(failure), sent)));
        assert!(!inbox.lock().is_complete());
        let (sender, _) = mpsc::channel();
        let sink = Arc::new(Notes(Mutex::new(sender)));
        let thread =
            follow_console(port, inbox.clone(), Box::new(io::sink()), sink).expect("thread");
        inner.write_all(b"hello").expect("write");
        drop(inner);
        thread.join().expect("thread");
        assert!(inbox.lock().is_complete());
    }

    #[test]
    fn typing_is_passed_on_and_ends_without_input() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let (mut keyboard, terminal) = UnixStream::pair().expect("pair");
        let typing = Typing::start(File::from(OwnedFd::from(terminal)), ours).expect("thread");
        keyboard.write_all(b"ls\n").expect("write");
        let mut got = [0; 3];
        (&theirs).read_exact(&mut got).expect("read");
        assert_eq!(&got, b"ls\n");
        drop(typing);
    }
}
