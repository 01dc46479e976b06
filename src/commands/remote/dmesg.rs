//! `hyprobe dmesg`.

use control::api::{Log, LogRecord};
use inspect::LogText;

use super::error::RemoteError;
use super::objects::print;
use super::viewed::Viewed;
use crate::cli::ViewArgs;
use crate::exit::Exit;
use crate::report::printable_line;

/// Prints the log of a kernel.
pub(crate) fn dmesg(args: &ViewArgs) -> Result<Exit, RemoteError> {
    let log = Viewed::open(&args.kernel)?.log()?;
    print(&log.records, args.json, || text(&log))?;
    Ok(Exit::Done)
}

fn text(log: &Log) -> String {
    let line = |record: &LogRecord| {
        let lines: Vec<_> = record.text.split('\n').map(printable_line).collect();
        let text = LogText {
            time_ns: log.prints_times.then_some(record.time_ns),
            text: &lines.join("\n"),
        };
        text.to_string()
    };
    log.records.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(text: &str, prints_times: bool) -> Log {
        let record = serde_json::json!({
            "seq": 0, "time_ns": 1_234_567_890_u64, "facility": 0, "level": 6, "caller": "T1", "text": text,
        });
        Log {
            records: vec![serde_json::from_value(record).expect("a record")],
            prints_times,
        }
    }

    #[test]
    fn each_line_has_the_time_and_no_control_characters() {
        let expected = "[    1.234567] a\n[    1.234567] \tb\\x1b[2J\n";
        assert_eq!(text(&log("a\n\tb\x1b[2J", true)), expected);
        assert_eq!(text(&log("a", false)), "a\n");
    }
}
