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
pub(crate) const fn is_log_reported(end: GuestEnd) -> bool {
    matches!(
        end,
        GuestEnd::Panic | GuestEnd::TripleFault | GuestEnd::Timeout | GuestEnd::Halted
    )
}

/// The end of the log of `machine`, whose vCPUs have stopped.
pub(crate) fn log_end(machine: &Live) -> LogEnd {
    match Log::read(&TargetMemory(machine).kernel()) {
        Ok(log) => last_lines(&log),
        Err(error) => LogEnd {
            missing: Some(chain(&error)),
            ..LogEnd::default()
        },
    }
}

/// As many of the last lines as fit. A hostile log is many times longer as text than in memory, so only these are formatted.
fn last_lines(log: &Log) -> LogEnd {
    let lines = log.records.iter().rev().flat_map(|record| {
        let time = log.prints_times.then_some(record.time_ns);
        let lines = record.text.split('\n').rev();
        lines.map(move |text| (time, text))
    });
    let (mut kept, mut bytes, mut left_out) = (Vec::new(), 0, 0);
    for (time_ns, text) in lines {
        if left_out == 0 {
            let line = LogText { time_ns, text }.to_string();
            bytes += line.len();
            if bytes <= MAX_BYTES {
                kept.push(line);
                continue;
            }
        }
        left_out += 1;
    }
    kept.reverse();
    LogEnd {
        text: kept.concat(),
        left_out,
        missing: None,
    }
}

#[cfg(test)]
mod tests {
    use inspect::LogRecord;

    use super::*;

    fn log(texts: impl IntoIterator<Item = String>) -> Log {
        let record = |(seq, text)| LogRecord {
            seq,
            time_ns: 1_000_000_000 + seq * 1000,
            facility: 0,
            level: 6,
            caller: "T1".to_owned(),
            device: None,
            text,
        };
        Log {
            records: (0..).zip(texts).map(record).collect(),
            prints_times: true,
        }
    }

    #[test]
    fn long_log_keeps_as_many_last_lines_as_fit() {
        let line = |number| format!("[    1.{number:06}] a line\n");
        let end = last_lines(&log((0..10_000).map(|_| "a line".to_owned())));
        assert!(end.text.len() <= MAX_BYTES && end.text.len() + line(0).len() > MAX_BYTES);
        assert!(end.text.starts_with(&line(end.left_out)));
        assert!(end.text.ends_with(&line(9_999)));
    }

    #[test]
    fn lines_of_one_record_are_kept_by_themselves() {
        let end = last_lines(&log(["\n".repeat(100_000) + "last"]));
        let empty = "[    1.000000] \n";
        let fits = (MAX_BYTES - "[    1.000000] last\n".len()) / empty.len();
        assert_eq!(end.text, empty.repeat(fits) + "[    1.000000] last\n");
        assert_eq!(end.left_out, 100_000 - fits);
    }

    #[test]
    fn short_log_is_whole_and_a_line_that_is_too_long_is_left_out() {
        let both = last_lines(&log(["a", "b"].map(str::to_owned)));
        assert_eq!(both.text, "[    1.000000] a\n[    1.000001] b\n");
        assert_eq!((both.left_out, &both.missing), (0, &None));
        assert_eq!(last_lines(&log([])), LogEnd::default());
        let end = last_lines(&log(["x".repeat(MAX_BYTES), "last".to_owned()]));
        assert_eq!((&*end.text, end.left_out), ("[    1.000001] last\n", 1));
    }
}
