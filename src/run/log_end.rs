//! The end of the kernel's log, for the summary of a guest that has crashed or hangs.
//!
//! The log is read from memory after the vCPUs have stopped: the kernel need not have printed it, and nothing runs in the guest.

use control::{Live, TargetMemory};
use errors::chain;
use events::LogEnd;
use inspect::{Log, LogText};
use manifest::GuestEnd;

/// The most text, in bytes: a panic with the stacks of several processors has less.
const MAX_BYTES: usize = 32 << 10;

/// Whether the summary of a guest that has ended by `end` has the end of the log.
pub(crate) const fn is_told(end: GuestEnd) -> bool {
    matches!(
        end,
        GuestEnd::Panic | GuestEnd::TripleFault | GuestEnd::Timeout | GuestEnd::Halted
    )
}

/// The end of the log of `machine`, whose vCPUs have stopped.
pub(crate) fn log_end(machine: &Live) -> LogEnd {
    match Log::read(&TargetMemory(machine).kernel()) {
        Ok(log) => last_lines(&text(&log)),
        Err(error) => LogEnd {
            missing: Some(chain(&error)),
            ..LogEnd::default()
        },
    }
}

fn text(log: &Log) -> String {
    let text = |record| LogText::new(record, log.prints_times).to_string();
    log.records.iter().map(text).collect()
}

/// As many of the last lines as fit.
fn last_lines(text: &str) -> LogEnd {
    let mut from = text.len();
    for line in text.split_inclusive('\n').rev() {
        if text.len() - from + line.len() > MAX_BYTES {
            break;
        }
        from -= line.len();
    }
    let (left_out, text) = text.split_at(from);
    LogEnd {
        text: text.to_owned(),
        left_out: left_out.lines().count(),
        missing: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_log_keeps_as_many_last_lines_as_fit() {
        let line = |number| format!("[    1.{number:06}] a line\n");
        let all: String = (0..10_000).map(line).collect();
        let end = last_lines(&all);
        assert!(end.text.len() <= MAX_BYTES && end.text.len() + line(0).len() > MAX_BYTES);
        assert!(end.text.starts_with(&line(end.left_out)));
        assert!(end.text.ends_with(&line(9_999)));
    }

    #[test]
    fn short_log_is_whole_and_a_line_that_is_too_long_is_left_out() {
        let whole = LogEnd {
            text: "a\nb\n".to_owned(),
            ..LogEnd::default()
        };
        assert_eq!(last_lines("a\nb\n"), whole);
        assert_eq!(last_lines(""), LogEnd::default());
        let long = "x".repeat(MAX_BYTES);
        let end = last_lines(&format!("{long}\nlast\n"));
        assert_eq!((&*end.text, end.left_out), ("last\n", 1));
    }
}
