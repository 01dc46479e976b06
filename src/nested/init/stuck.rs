//! The threads of a run that has not ended though it was asked to.
//!
//! The launcher kills QEMU a few seconds later. The list shows whether a thread of the run waits or loops, and where. Without a list, the
//! outer Linux itself may have stopped.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::nested::phase::STOP_LIMIT;
use crate::nested::threads::{SAMPLE, listed, tasks};
use crate::stderr::say;

/// From the request to the list: less than the launcher's limit.
const PATIENCE: Duration = Duration::from_secs(8);
const _: () = assert!(PATIENCE.as_secs() + SAMPLE.as_secs() < STOP_LIMIT.as_secs());

/// Waits for [`PATIENCE`] on a thread of its own, then prints this process's threads on standard error, unless the run `has_ended`.
pub(super) fn print_later(has_ended: Arc<AtomicBool>) -> io::Result<()> {
    let print = move || {
        thread::sleep(PATIENCE);
        if has_ended.load(Ordering::Acquire) {
            return;
        }
        let threads = listed(tasks(Path::new("/proc/self/task")));
        if !has_ended.load(Ordering::Acquire) {
            // In one write: each takes long.
            say(format_args!(
                "hyprobe: the nested run was asked to end {} s ago and has not; its threads, over {} s:{threads}",
                PATIENCE.as_secs(),
                SAMPLE.as_secs()
            ));
        }
    };
    thread::Builder::new()
        .name("stuck".to_owned())
        .spawn(print)?;
    Ok(())
}
