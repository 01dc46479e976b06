//! The port through which clients control the run.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use control::Incoming;
use control::mux::Inner;

use super::counted::Counted;

/// As much as the link writes at once: each write notifies the host, which is expensive under emulation.
const CHUNK_BYTES: usize = 64 << 10;

/// The port, with a thread for each direction: a character device does not go together with the link's runtime.
#[derive(Debug)]
pub(super) struct ClientsPort {
    link: Inner,
    outwards: JoinHandle<()>,
    written: Arc<AtomicU64>,
}

impl ClientsPort {
    /// Connects the clients of `port` with the server of the run.
    pub(super) fn start(port: File) -> io::Result<(Self, Incoming)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (link, incoming) = Inner::start(theirs)?;
        // The thread ends with the machine.
        copy("clients-in", port.try_clone()?, ours.try_clone()?)?;
        let port = Counted::new(port);
        let written = port.count();
        let outwards = copy("clients-out", ours, port)?;
        let started = Self {
            link,
            outwards,
            written,
        };
        Ok((started, incoming))
    }

    /// Waits, after the run, until all output for the clients is written. Returns the number of written bytes.
    pub(super) fn finish(self) -> u64 {
        self.link.finish();
        // A panic is in the log.
        let _ = self.outwards.join();
        self.written.load(Ordering::Acquire)
    }
}

fn copy(
    name: &str,
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let copy = move || {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            if to.write_all(&chunk[..read]).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(copy)
}
