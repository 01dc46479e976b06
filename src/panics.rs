//! Panics of this process's threads. After a panic of any thread, the results of a running guest are wrong.

use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, MutexGuard, PoisonError};

use events::Summary;
use manifest::GuestEnd;

/// The messages of all panics.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Installs a panic hook that stores each message, and prints the message as before.
pub fn note_all() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        noted().push(in_words(info));
        print(info);
    }));
}

fn noted() -> MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_words(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let message = info.payload_as_str().unwrap_or("without a message");
    let place = info
        .location()
        .map_or(String::new(), |place| format!(" at {place}"));
    let message = message.escape_debug();
    format!(
        "hyprobe's thread `{}` panicked{place}: {message}; this is a bug of hyprobe",
        thread.name().unwrap_or("?")
    )
}

/// A point in time: later panics can be asked for.
#[derive(Clone, Copy, Debug)]
pub struct Since(usize);

impl Since {
    pub fn now() -> Self {
        Self(noted().len())
    }

    /// The first panic since then.
    pub fn first(self) -> Option<String> {
        noted().get(self.0).cloned()
    }

    /// Makes the run in `summary` a failed one if a thread has panicked since then.
    pub fn judge(self, summary: &mut Summary) {
        if let Some(panic) = self.first() {
            summary.guest.end = GuestEnd::Failed;
            summary.guest.detail = Some(panic);
        }
    }
}
