//! The health of a guest, read from the console.

use std::collections::BTreeSet;

/// Words of a damage report.
const DAMAGE: [&str; 11] = [
    "WARNING:",
    "BUG:",
    "kernel BUG",
    "Oops",
    "Call Trace",
    "general protection fault",
    "invalid opcode",
    "unhandled signal",
    "segfault at",
    "traps: ",
    "Kernel panic",
];
/// Words of a report of too little time: the cause may be a busy host.
const LITTLE_TIME: [&str; 6] = [
    "soft lockup",
    "rcu: INFO",
    "kthread starved for",
    "NMI backtrace",
    "INFO: task",
    "blocked for more than",
];
/// The maximum number of lines of a report of too little time, behind the first line.
const REPORT_LINES: usize = 80;
/// The maximum duration of such a report: for ten seconds the kernel waits for a CPU that does not print its stack. The next report
/// comes twenty seconds later.
const REPORT_SECONDS: f64 = 15.0;
/// The number of lines quoted of a failed guest.
const LAST_LINES: usize = 4;
const LAST_BYTES: usize = 300;

/// Distinguishes the lines of a report of too little time: a hanging guest prints such reports for ever.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LittleTime {
    /// The end of the last report, by the kernel's clock.
    until_seconds: Option<f64>,
}

impl LittleTime {
    /// Whether `line`, the next of the console, belongs to a report. A line of a program, which has no time stamp, does not.
    pub(super) fn includes(&mut self, line: &str) -> bool {
        let time = stamp(line);
        if is_little_time(line) {
            self.until_seconds = time.map(|time| time + REPORT_SECONDS);
            return true;
        }
        let ends = self.until_seconds.zip(time);
        ends.is_some_and(|(until, time)| time <= until)
    }
}

/// The reports in a console's text, without the parts that differ from boot to boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reports {
    /// Lines with damage reports.
    pub(super) damage: BTreeSet<String>,
    /// The first line with a report of too little time.
    pub(super) little_time: Option<String>,
}

impl Reports {
    /// All reports in `console`.
    pub(super) fn of(console: &str) -> Self {
        let mut reports = Self::default();
        let mut belongs_to_report = 0_usize;
        for line in console.lines() {
            if is_little_time(line) {
                reports
                    .little_time
                    .get_or_insert_with(|| without_time(line).to_owned());
                belongs_to_report = REPORT_LINES;
            } else if DAMAGE.iter().any(|word| line.contains(word)) {
                let is_trace = line.contains("Call Trace");
                if !(is_trace && belongs_to_report > 0) {
                    reports.damage.insert(comparable(line));
                }
            }
            belongs_to_report = belongs_to_report.saturating_sub(1);
        }
        reports
    }

    /// A damage report missing in `baseline`.
    pub(super) fn beyond<'s>(&'s self, baseline: &'s Self) -> Option<&'s str> {
        self.damage
            .difference(&baseline.damage)
            .next()
            .map(String::as_str)
    }
}

fn is_little_time(line: &str) -> bool {
    LITTLE_TIME.iter().any(|word| line.contains(word))
}

/// The line without its time stamp, and with `#` for each number.
fn comparable(line: &str) -> String {
    let mut text = String::new();
    let mut word = String::new();
    let flush = |word: &mut String, text: &mut String| {
        let is_number = word.chars().any(|c| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_hexdigit() || c == 'x');
        text.push_str(if is_number { "#" } else { word });
        word.clear();
    };
    for c in without_time(line).chars() {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
        } else {
            flush(&mut word, &mut text);
            text.push(c);
        }
    }
    flush(&mut word, &mut text);
    text
}

fn without_time(line: &str) -> &str {
    let line = line.trim();
    behind_stamp(line).map_or(line, |(_, rest)| rest)
}

/// The seconds of the kernel's time stamp, if `line` has one.
fn stamp(line: &str) -> Option<f64> {
    let (stamp, _) = behind_stamp(line.trim())?;
    stamp.parse().ok()
}

/// The kernel's time stamp at the start of `line`, and the text behind the stamp.
fn behind_stamp(line: &str) -> Option<(&str, &str)> {
    let (stamp, rest) = line.strip_prefix('[')?.split_once(']')?;
    let stamp = stamp.trim();
    let is_time = stamp.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    is_time.then(|| (stamp, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// The end of a console's text, in one line.
pub(super) fn last_words(console: &str) -> String {
    let lines: Vec<&str> = console
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let words = lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ");
    let skipped = words.len().saturating_sub(LAST_BYTES);
    match (skipped..words.len()).find(|at| words.is_char_boundary(*at)) {
        Some(start) => words[start..].to_owned(),
        None => "nothing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_the_baseline_is_no_damage_and_another_is() {
        let baseline = Reports::of(
            "[    0.1] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable\n",
        );
        let same = Reports::of(
            "[   12.7] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable\r\n",
        );
        assert_eq!(same.beyond(&baseline), None);
        let other = Reports::of("[    3.1] WARNING: CPU: 1 PID: 17 at mm/slub.c:100 f+0x1/0x2\n");
        assert_eq!(
            other.beyond(&baseline),
            Some("WARNING: CPU: # PID: # at mm/slub.c:# f+#/#")
        );
    }

    #[test]
    fn numbers_do_not_make_two_reports_of_one() {
        let first = Reports::of("[ 0.1] WARNING: CPU: 0 PID: 1 at a.c:7 do_x2+0x1f/0xff0\n");
        let second = Reports::of("[ 9.1] WARNING: CPU: 1 PID: 203 at a.c:7 do_x2+0x1f/0xff0\n");
        assert_eq!(second.beyond(&first), None);
        assert!(
            first.damage.iter().all(|line| line.contains("do_x2")),
            "{first:?}"
        );
    }

    const LOCKUP: &str = "[ 26.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [init:1]\n[ 26.1] Modules linked in:\n\
                          [ 26.2] Call Trace:\n[ 26.2]  <TASK>\n";

    #[test]
    fn trace_of_a_soft_lockup_is_about_time_and_any_other_trace_is_damage() {
        let reports = Reports::of(LOCKUP);
        assert!(reports.damage.is_empty(), "{reports:?}");
        assert!(reports.little_time.is_some());
        let oops = Reports::of("[ 1.1] Oops: 0000 [#1]\n[ 1.1] Call Trace:\n");
        assert_eq!(oops.damage.len(), 2);
        assert_eq!(oops.little_time, None);
    }

    #[test]
    fn report_of_too_little_time_ends_after_seconds_and_has_no_line_of_a_program() {
        let mut little_time = LittleTime::default();
        let mut include = |lines: &str| -> Vec<bool> {
            lines
                .lines()
                .map(|line| little_time.includes(line))
                .collect()
        };
        assert_eq!(include("[ 9.1] devtmpfs: initialized\n"), [false]);
        assert_eq!(include(LOCKUP), [true; 4]);
        assert_eq!(include("[ 27.0]\nworkload: start\n"), [true, false]);
        assert_eq!(
            include("[ 40.9] RIP: 0010:f\n[ 41.3] pci: 1\n"),
            [true, false]
        );
        assert_eq!(include(&LOCKUP.replace("26.", "48.")), [true; 4]);
        assert_eq!(include("[ 63.2] pci: 2\n"), [false]);
        let starved =
            "[ 70.1] rcu: rcu_preempt kthread starved for 5250 jiffies!\n[ 84.9]  <TASK>\n";
        assert_eq!(include(starved), [true; 2]);
    }

    #[test]
    fn last_words_are_short_and_whole_characters() {
        assert_eq!(last_words(""), "nothing");
        assert_eq!(last_words("a\r\n\r\nb\r\n"), "a | b");
        let long = "é".repeat(1000);
        assert!(last_words(&long).len() <= LAST_BYTES);
    }
}
