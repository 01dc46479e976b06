//! The output of a running guest, for the threads that wait for it.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use events::{Event, EventSink, Hit, Note, Return};

/// The beginning of the note about a kernel without types, as the test guest is one.
const UNTYPED: &str = "events show neither typed arguments nor tasks: ";

/// The time within which a live guest shows the awaited output.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Seen {
    hits: Vec<Hit>,
    returns: Vec<Return>,
    notes: Vec<Note>,
    console: Vec<u8>,
}

/// Receives a guest's events and console output. Clones share the output.
#[derive(Clone, Debug, Default)]
pub struct Observer(Arc<(Mutex<Seen>, Condvar)>);

impl Observer {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // A failed assertion on another thread leaves the output valid.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen());
        self.0.1.notify_all();
    }

    fn wait_until(&self, what: &str, reached: impl Fn(&Seen) -> bool) {
        let (seen, waited) = self
            .0
            .1
            .wait_timeout_while(self.seen(), PATIENCE, |seen| !reached(seen))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(
            !waited.timed_out(),
            "no {what}; {} hits, console:\n{}",
            seen.hits.len(),
            String::from_utf8_lossy(&seen.console)
        );
    }

    /// Returns once the guest has hit its probes `hits` times.
    ///
    /// # Panics
    ///
    /// If the hits do not come in time.
    pub fn wait_for_hits(&self, hits: usize) {
        self.wait_until(&format!("{hits} hits"), |seen| seen.hits.len() >= hits);
    }

    /// Returns once the guest has printed `text`.
    ///
    /// # Panics
    ///
    /// If the text does not come in time.
    pub fn wait_for_console(&self, text: &str) {
        self.wait_until(text, |seen| {
            String::from_utf8_lossy(&seen.console).contains(text)
        });
    }

    /// The hits until now.
    #[must_use]
    pub fn hits(&self) -> Vec<Hit> {
        self.seen().hits.clone()
    }

    /// The returns until now.
    #[must_use]
    pub fn returns(&self) -> Vec<Return> {
        self.seen().returns.clone()
    }

    /// The notes until now, without the note that the test guest has no types.
    #[must_use]
    pub fn notes(&self) -> Vec<Note> {
        let mut notes = self.seen().notes.clone();
        notes.retain(|note| !note.text.starts_with(UNTYPED));
        notes
    }

    /// The guest's console output until now.
    #[must_use]
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&self.seen().console).into_owned()
    }
}

impl EventSink for Observer {
    fn event(&self, event: Event) {
        self.change(|seen| match event {
            Event::Hit(hit) => seen.hits.push(hit),
            Event::Return(ret) => seen.returns.push(ret),
            Event::Note(note) => seen.notes.push(note),
            Event::Summary(_) => panic!("a session returns its summary"),
        });
    }
}

impl Write for Observer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.change(|seen| seen.console.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
