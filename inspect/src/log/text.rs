//! The log as text.

use std::fmt;

use super::ring::LogRecord;

/// A record as `dmesg` prints it: the time in front of each line, and each line ended.
#[derive(Clone, Copy, Debug)]
pub struct LogText<'r> {
    /// The time in nanoseconds; `None` if the kernel prints no times.
    pub time_ns: Option<u64>,
    /// The text of the record.
    pub text: &'r str,
}

impl<'r> LogText<'r> {
    /// The text of `record`, with times if `times`.
    #[must_use]
    pub fn new(record: &'r LogRecord, times: bool) -> Self {
        Self {
            time_ns: times.then_some(record.time_ns),
            text: &record.text,
        }
    }
}

impl fmt::Display for LogText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.text.split('\n') {
            if let Some(time) = self.time_ns {
                let (seconds, micros) = (time / 1_000_000_000, time / 1000 % 1_000_000);
                write!(f, "[{seconds:5}.{micros:06}] ")?;
            }
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
