//! The lines of the console, and their times.

use std::time::Duration;

use crate::Event;

/// The maximum length of a line; each piece of a longer line is a line.
const MAX_LINE_BYTES: usize = 4096;

/// Cuts the console's output into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: Vec<u8>,
}

impl Lines {
    /// Adds bytes. Each complete line goes to `take`, without its line end.
    pub(super) fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' || self.held.len() >= MAX_LINE_BYTES {
                self.give(&mut take);
            }
            if byte != b'\n' {
                self.held.push(byte);
            }
        }
    }

    /// Ends the input; an incomplete line goes to `take`.
    pub(super) fn finish(&mut self, mut take: impl FnMut(&str)) {
        if !self.held.is_empty() {
            self.give(&mut take);
        }
    }

    fn give(&mut self, take: &mut impl FnMut(&str)) {
        let line = String::from_utf8_lossy(&self.held);
        take(line.trim_end_matches('\r'));
        self.held.clear();
    }
}

/// The times of console lines, since the guest's first instruction.
///
/// The console has no clock of its own, and the start time of a nested guest is unknown outside. An event has a time stamp. The time from
/// the stamp to the arrival includes the delay of delivery, so the event with the shortest delay gives the best start time. Without events,
/// the console's first byte gives the start time.
#[derive(Debug, Default)]
pub(super) struct Clock {
    started: Option<Duration>,
    last: Duration,
}

impl Clock {
    pub(super) fn event(&mut self, now: Duration, event: &Event) {
        let ts_ns = match event {
            Event::Hit(hit) => hit.ts_ns,
            Event::Return(returned) => returned.ts_ns,
            Event::Note(note) => note.ts_ns,
            Event::Summary(_) => return,
        };
        let started = now.saturating_sub(Duration::from_nanos(ts_ns));
        self.started = Some(self.started.map_or(started, |before| before.min(started)));
        self.last = now;
    }

    /// The time at which data arriving now was written.
    pub(super) fn console(&mut self, now: Duration) -> Duration {
        self.last = now;
        now.saturating_sub(*self.started.get_or_insert(now))
    }

    /// The time of the last arrival.
    pub(super) fn last(&self) -> Duration {
        self.last.saturating_sub(self.started.unwrap_or(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Note;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.push(chunk, |line| found.push(line.to_owned()));
        }
        lines.finish(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_are_put_together_and_cut() {
        assert_eq!(
            lines(&[b"on", b"e\r\ntwo\n\nlo", b"gin: "]),
            ["one", "two", "", "login: "]
        );
        let long = vec![b'x'; 3 * MAX_LINE_BYTES + 1];
        let lengths: Vec<_> = lines(&[&long]).iter().map(String::len).collect();
        assert_eq!(lengths, [MAX_LINE_BYTES, MAX_LINE_BYTES, MAX_LINE_BYTES, 1]);
    }

    #[test]
    fn quickest_event_sets_the_guest_s_start() {
        let second = Duration::from_secs(1);
        let note = |seconds: u64| {
            Event::Note(Note {
                ts_ns: seconds * 1_000_000_000,
                probe: None,
                text: String::new(),
            })
        };
        let mut clock = Clock::default();
        assert_eq!(clock.console(7 * second), Duration::ZERO);
        clock.event(9 * second, &note(3));
        assert_eq!(clock.console(10 * second), 4 * second);
        clock.event(20 * second, &note(1));
        assert_eq!(clock.console(20 * second), 14 * second);
    }
}
