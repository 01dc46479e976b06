//! A panic of a thread of the machine. The panic is a bug of the VMM or of a handler, and ends the machine as failed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A thread panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hyprobe's thread `{thread}` panicked: {message}")]
pub struct Panicked {
    /// The thread's name.
    pub thread: String,
    /// The panic's message. The panic hook has printed the message and its source location.
    pub message: String,
}

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self {
            thread: std::thread::current().name().unwrap_or("?").to_owned(),
            message: text.unwrap_or("without a message").to_owned(),
        }
    }
}

/// The first panic of a machine's threads.
#[derive(Debug, Default)]
pub(crate) struct FirstPanic(Mutex<Option<Panicked>>);

impl FirstPanic {
    /// Calls `work`. Stores and returns a panic of `work`.
    pub(crate) fn watch(&self, work: impl FnOnce()) -> Result<(), Panicked> {
        // The data behind the machine's locks is valid after every statement, and the machine ends.
        catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
            let panicked = Panicked::new(&*payload);
            self.lock().get_or_insert_with(|| panicked.clone());
            panicked
        })
    }

    pub(crate) fn get(&self) -> Option<Panicked> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Panicked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_panic_is_kept_with_its_thread_and_message() {
        let first = FirstPanic::default();
        assert_eq!(first.watch(|| ()), Ok(()));
        assert_eq!(first.get(), None);
        std::thread::scope(|scope| {
            let panics = || first.watch(|| panic!("at {:#x}", 255));
            let thread = std::thread::Builder::new().name("vcpu7".to_owned());
            let thread = thread.spawn_scoped(scope, panics).expect("a thread");
            thread.join().expect("it is caught").expect_err("a panic");
        });
        first.watch(|| panic!("later")).expect_err("a panic");
        let expected = Panicked {
            thread: "vcpu7".to_owned(),
            message: "at 0xff".to_owned(),
        };
        assert_eq!(first.get(), Some(expected));
    }
}
