//! Events for people.

use events::{Event, Note};

use super::printable::printable;
use super::style::{Ink, Style};
use super::table;
use super::text_line::{line, seconds};

/// Longer names do not move the columns behind them.
const MAX_COLUMN: usize = 40;

/// Makes lines of events. Columns grow with their cells, and never shrink.
#[derive(Debug)]
pub struct Formatter {
    style: Style,
    /// The beginning of each line, if the console writes to the same stream.
    prefix: &'static str,
    probe_width: usize,
    symbol_width: usize,
}

impl Formatter {
    /// `among_console` marks the lines, because the guest's console is between them.
    pub fn new(style: Style, among_console: bool) -> Self {
        let prefix = if among_console { ">> " } else { "" };
        Self {
            style,
            prefix,
            probe_width: 0,
            symbol_width: 0,
        }
    }

    /// Appends one event as a line, the summary as a table.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Hit(hit) => {
                let args = hit.args.map(|arg| arg.to_string()).join(", ");
                let (probe, symbol) = (printable(&hit.probe), printable(&hit.symbol));
                let told = (hit.ts_ns, hit.vcpu, &*probe, &*symbol);
                self.row(told, format!("({args})"), out);
            }
            Event::Return(ret) => {
                let took = micros(ret.took_ns);
                let (probe, symbol) = (printable(&ret.probe), printable(&ret.symbol));
                let told = (ret.ts_ns, ret.vcpu, &*probe, &*symbol);
                self.row(told, format!("= {} after {took} µs", ret.retval), out);
            }
            Event::Note(note) => self.note(note, out),
            Event::Summary(summary) => table::summary(summary, self.style, out),
        }
    }

    /// Appends the line of a hit or return: time, vCPU, probe, symbol and details.
    fn row(
        &mut self,
        (ts_ns, vcpu, probe, symbol): (u64, usize, &str, &str),
        said: String,
        out: &mut Vec<u8>,
    ) {
        self.probe_width = self.probe_width.max(probe.len().min(MAX_COLUMN));
        self.symbol_width = self.symbol_width.max(symbol.len().min(MAX_COLUMN));
        let (style, probe_width, symbol_width) = (self.style, self.probe_width, self.symbol_width);
        let time = format!("{:>11}", seconds(ts_ns));
        let cpu = format!("cpu{vcpu:<2}");
        let before = self.prefix.len()
            + time.len()
            + cpu.len()
            + probe.len().max(probe_width)
            + symbol.len().max(symbol_width)
            + 8;
        let said = cut(said, style.width.map(|width| width.saturating_sub(before)));
        line(
            out,
            format_args!(
                "{}{}  {}  {}  {symbol:symbol_width$}  {said}",
                style.paint(Ink::Faint, self.prefix),
                style.paint(Ink::Faint, time),
                style.paint(Ink::Faint, cpu),
                style.paint(Ink::Name, format!("{probe:probe_width$}")),
            ),
        );
    }

    fn note(&self, note: &Note, out: &mut Vec<u8>) {
        let style = self.style;
        let time = format!("{:>11}", seconds(note.ts_ns));
        let about = note
            .probe
            .as_ref()
            .map(|probe| format!("{}: ", printable(probe)))
            .unwrap_or_default();
        line(
            out,
            format_args!(
                "{}{}  {}  {}{}",
                style.paint(Ink::Faint, self.prefix),
                style.paint(Ink::Faint, time),
                style.paint(Ink::Warning, "note "),
                style.paint(Ink::Name, about),
                printable(&note.text),
            ),
        );
    }
}

/// Microseconds with one digit behind the point.
fn micros(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}

/// The text, cut at `width` with `…`.
fn cut(text: String, width: Option<usize>) -> String {
    match width {
        Some(width) if text.len() > width && width > 0 => {
            let mut short: String = text.chars().take(width - 1).collect();
            short.push('…');
            short
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use events::{GuestSummary, Hex, Hit, Registers, Summary};
    use manifest::GuestEnd;

    use super::*;

    #[test]
    fn text_of_the_guest_adds_no_line_and_no_escape() {
        let summary = Summary {
            accel: "kvm".to_owned(),
            guest: GuestSummary {
                end: GuestEnd::Panic,
                detail: Some("x\nall 3 expectations hold\x1b[2J".to_owned()),
                crash: None,
            },
            ran_ns: 0,
            probes: Vec::new(),
            dropped: 0,
            restarts: Vec::new(),
        };
        let note = Note {
            ts_ns: 0,
            probe: None,
            text: "module `a\nb`".to_owned(),
        };
        let events = [
            hit("kprobe:\x1b]0;f", "f\n  1.0  cpu0"),
            Event::Note(note),
            Event::Summary(summary),
        ];
        let mut out = Vec::new();
        let mut formatter = Formatter::new(Style::plain(), false);
        events
            .iter()
            .for_each(|event| formatter.event(event, &mut out));
        let text = String::from_utf8(out).expect("text");
        assert!(!text.contains('\x1b'), "{text}");
        // A line each, and an empty one before the summary.
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    fn hit(probe: &str, symbol: &str) -> Event {
        Event::Hit(Hit {
            probe: probe.into(),
            ts_ns: 1_234_567_891,
            vcpu: 0,
            ip: Hex(0xffff_ffff_8139_a0c0),
            symbol: symbol.into(),
            regs: Registers::default(),
            args: [0xffff_ff9c, 1, 2, 3, 4, 5].map(Hex),
        })
    }

    fn lines(formatter: &mut Formatter, events: &[Event]) -> String {
        let mut out = Vec::new();
        for event in events {
            formatter.event(event, &mut out);
        }
        String::from_utf8(out).expect("utf-8")
    }

    #[test]
    fn hits_are_in_columns() {
        let events = [
            hit("kprobe:vfs_open", "vfs_open+0x0"),
            hit("kprobe:a", "a+0x0"),
        ];
        let text = lines(&mut Formatter::new(Style::plain(), false), &events);
        assert_eq!(
            text,
            "   1.234567  cpu0   kprobe:vfs_open  vfs_open+0x0  (0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n\
             \u{20}  1.234567  cpu0   kprobe:a         a+0x0         (0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n"
        );
    }

    #[test]
    fn a_note_names_its_probe() {
        let note = Event::Note(Note {
            ts_ns: 5_000,
            probe: Some("kprobe:x".to_owned()),
            text: "armed".to_owned(),
        });
        let text = lines(&mut Formatter::new(Style::plain(), true), &[note]);
        assert_eq!(text, ">>    0.000005  note   kprobe:x: armed\n");
    }

    #[test]
    fn a_line_ends_at_the_edge_of_the_terminal() {
        let mut style = Style::plain();
        style.width = Some(60);
        let text = lines(
            &mut Formatter::new(style, false),
            &[hit("kprobe:vfs_open", "vfs_open+0x0")],
        );
        assert_eq!(text.trim_end().chars().count(), 60, "{text}");
        assert!(text.ends_with("…\n"), "{text}");
    }
}
