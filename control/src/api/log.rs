//! The log of the guest's kernel.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogRecord {
    /// Number of the record, from 0 on. Numbers are missing if the kernel has dropped records.
    pub seq: u64,
    /// Time of the kernel's clock in nanoseconds, which is not the clock of events.
    pub time_ns: u64,
    /// Syslog facility; 0 for the kernel's own messages.
    pub facility: u8,
    /// Level from 0, an emergency, to 7, debugging.
    pub level: u8,
    /// Writer: `T` and the number of the thread, or `C` and the number of the processor.
    pub caller: String,
    /// Subsystem of the device that the message is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub subsystem: Option<String>,
    /// Device that the message is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
    /// Text: a line, or several.
    pub text: String,
}

/// The log, the oldest record first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Log {
    /// The records.
    pub records: Vec<LogRecord>,
    /// Whether the guest's kernel prints the time in front of each line.
    pub prints_times: bool,
}

impl From<inspect::Log> for Log {
    fn from(log: inspect::Log) -> Self {
        Self {
            records: log.records.into_iter().map(Into::into).collect(),
            prints_times: log.prints_times,
        }
    }
}

impl From<inspect::LogRecord> for LogRecord {
    fn from(record: inspect::LogRecord) -> Self {
        let (subsystem, device) = record.device.unzip();
        Self {
            seq: record.seq,
            time_ns: record.time_ns,
            facility: record.facility,
            level: record.level,
            caller: record.caller,
            subsystem,
            device,
            text: record.text,
        }
    }
}
