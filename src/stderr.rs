//! Messages on standard error.

use std::fmt::Display;
use std::io::Write as _;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The time for a reader of standard error to make room for a line.
const PATIENCE: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// Writes a line to standard error. An error (a full disk, a closed pipe) does not end the run. If the reader of standard error
/// stalls, the line is dropped.
pub(crate) fn say(text: impl Display) {
    write(format!("{text}\n").as_bytes());
}

/// Writes bytes to standard error. If the reader stalls, the bytes are dropped.
pub(crate) fn write(bytes: &[u8]) {
    let stderr = std::io::stderr();
    let is_writable = {
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        // If the poll fails, the write is tried.
        poll(&mut fds, Some(&PATIENCE)).map_or(true, |ready| ready > 0)
    };
    if is_writable {
        let _ = stderr.lock().write_all(bytes);
    }
}
