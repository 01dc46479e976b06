//! Events for people.

use std::borrow::Cow;

use events::{Event, Hex, Note, Param, Registers, StackFrame, Task};
use manifest::ProbeKind;

use super::printable::printable;
use super::style::{Ink, Style};
use super::table;
use super::text_line::{line, seconds};

/// Longer names do not move the columns behind them.
const MAX_COLUMN: usize = 24;
/// Deeper calls are not indented further.
const MAX_INDENTS: usize = 16;

/// The columns in front of a frame: behind time and vCPU.
const STACK_INDENT: usize = 20;

/// Makes lines of events. Columns grow with their cells, and never shrink.
#[derive(Debug)]
pub struct Formatter {
    style: Style,
    /// The beginning of each line, if the console writes to the same stream.
    prefix: &'static str,
    task_width: usize,
    /// Whether the registers are below a line.
    registers: bool,
}

impl Formatter {
    /// `among_console` marks the lines, because the guest's console is between them.
    pub fn new(style: Style, among_console: bool) -> Self {
        let prefix = if among_console { ">> " } else { "" };
        Self {
            style,
            prefix,
            task_width: 0,
            registers: false,
        }
    }

    /// With `registers`, hits and returns have the registers below, in lines of their own.
    #[must_use]
    pub fn with_registers(self, registers: bool) -> Self {
        Self { registers, ..self }
    }

    /// Appends one event as a line, the summary as a table.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Hit(hit) => {
                let params: Vec<String> = match &hit.params {
                    Some(params) => params.iter().map(Param::to_string).collect(),
                    None => hit.args.iter().map(Hex::to_string).collect(),
                };
                let when = (hit.ts_ns, hit.vcpu, hit.task.as_ref());
                let depth = hit.depth;
                let function = match (named(&hit.probe), &hit.params) {
                    (Some(name), _) => name.to_owned(),
                    (None, Some(_)) => function(&hit.symbol),
                    (None, None) => entry(&hit.symbol),
                };
                self.row(
                    when,
                    depth,
                    &function,
                    &format!("({})", params.join(", ")),
                    out,
                );
                self.registers(&hit.regs, out);
                self.stack(hit.stack.as_deref(), hit.stack_incomplete.as_deref(), out);
            }
            Event::Return(ret) => {
                let took = micros(ret.took_ns);
                let value = match &ret.returned {
                    Some(value) => value.to_string(),
                    None => ret.retval.to_string(),
                };
                let when = (ret.ts_ns, ret.vcpu, ret.task.as_ref());
                let said = format!(" = {value} after {took} µs");
                let function = match named(&ret.probe) {
                    Some(name) => name.to_owned(),
                    None => function(&ret.symbol),
                };
                self.row(when, ret.depth, &function, &said, out);
                self.registers(&ret.regs, out);
                self.stack(ret.stack.as_deref(), ret.stack_incomplete.as_deref(), out);
            }
            Event::Note(note) => self.note(note, out),
            Event::Summary(summary) => table::summary(summary, self.style, out),
        }
    }

    /// Appends the line of a hit or return: time, vCPU, task, function and details. An indentation shows the followed calls around it.
    fn row(
        &mut self,
        (ts_ns, vcpu, task): (u64, usize, Option<&Task>),
        depth: usize,
        function: &str,
        said: &str,
        out: &mut Vec<u8>,
    ) {
        let task = task.map(|task| task.to_string()).unwrap_or_default();
        let task = printable(&task);
        self.task_width = self.task_width.max(task.len().min(MAX_COLUMN));
        let (style, task_width) = (self.style, self.task_width);
        let time = format!("{:>11}", seconds(ts_ns));
        let cpu = format!("cpu{vcpu:<2}");
        let task = match task_width {
            0 => String::new(),
            _ => format!("  {task:task_width$}"),
        };
        let function = printable(function);
        let indent = 2 * depth.min(MAX_INDENTS);
        let before = self.prefix.len()
            + time.len()
            + cpu.len()
            + task.chars().count()
            + indent
            + function.len()
            + 4;
        let said = printable(said);
        let said = cut(&said, style.width.map(|width| width.saturating_sub(before)));
        line(
            out,
            format_args!(
                "{}{}  {}{}  {:indent$}{}{said}",
                style.paint(Ink::Faint, self.prefix),
                style.paint(Ink::Faint, time),
                style.paint(Ink::Faint, cpu),
                style.paint(Ink::Faint, task),
                "",
                style.paint(Ink::Name, function),
            ),
        );
    }

    fn registers(&self, regs: &Registers, out: &mut Vec<u8>) {
        if !self.registers {
            return;
        }
        for row in registers(regs) {
            let row = row.map(|(name, value)| format!("{name:>6} {:#018x}", value.0));
            line(
                out,
                format_args!(
                    "{}{:11}{}",
                    self.style.paint(Ink::Faint, self.prefix),
                    "",
                    self.style.paint(Ink::Faint, row.concat()),
                ),
            );
        }
    }

    /// Appends the lines of a stack, a line for each frame.
    fn stack(&self, frames: Option<&[StackFrame]>, incomplete: Option<&str>, out: &mut Vec<u8>) {
        let style = self.style;
        let width = style.width.map(|width| width.saturating_sub(STACK_INDENT));
        let mut indented = |text: &str| {
            let text = printable(text);
            let text = cut(&text, width);
            line(
                out,
                format_args!(
                    "{}{:STACK_INDENT$}{text}",
                    style.paint(Ink::Faint, self.prefix),
                    ""
                ),
            );
        };
        for frame in frames.into_iter().flatten() {
            indented(&frame.to_string());
        }
        if let Some(why) = incomplete {
            indented(&format!("… {why}"));
        }
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

/// All registers, three in a row, so that a row fits a terminal of 80 columns.
fn registers(regs: &Registers) -> [[(&'static str, Hex); 3]; 6] {
    [
        [
            ("rip", regs.rip),
            ("rsp", regs.rsp),
            ("rflags", regs.rflags),
        ],
        [("rax", regs.rax), ("rbx", regs.rbx), ("rcx", regs.rcx)],
        [("rdx", regs.rdx), ("rsi", regs.rsi), ("rdi", regs.rdi)],
        [("rbp", regs.rbp), ("r8", regs.r8), ("r9", regs.r9)],
        [("r10", regs.r10), ("r11", regs.r11), ("r12", regs.r12)],
        [("r13", regs.r13), ("r14", regs.r14), ("r15", regs.r15)],
    ]
}

/// Microseconds with one digit behind the point.
fn micros(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}

/// The function of `symbol+0xoffset`, with its module.
fn function(symbol: &str) -> String {
    let Some((function, offset)) = symbol.split_once('+') else {
        return symbol.to_owned();
    };
    match offset.split_once(' ') {
        Some((_, module)) => format!("{function} {module}"),
        None => function.to_owned(),
    }
}

/// The system call or tracepoint of a probe.
fn named(probe: &str) -> Option<&str> {
    let (kind, name) = probe.split_once(':')?;
    let is = |known: ProbeKind| known.keyword() == kind;
    if is(ProbeKind::Tracepoint) {
        // The site follows the name if the tracepoint has several.
        return name.split('@').next();
    }
    (is(ProbeKind::Syscall) || is(ProbeKind::Retsyscall)).then_some(name)
}

/// `symbol+0xoffset` as a name, without an offset of zero.
fn entry(symbol: &str) -> String {
    match symbol.split_once("+0x0 ") {
        Some((function, module)) => format!("{function} {module}"),
        None => symbol.strip_suffix("+0x0").unwrap_or(symbol).to_owned(),
    }
}

/// The text, cut at `width` characters with `…`.
fn cut(text: &str, width: Option<usize>) -> Cow<'_, str> {
    match width {
        Some(width) if width > 0 && text.chars().nth(width).is_some() => {
            let mut short: String = text.chars().take(width - 1).collect();
            short.push('…');
            short.into()
        }
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use events::{
        GuestString, GuestSummary, Hex, Hit, Number, Param, Registers, Return, Summary, Typed,
    };
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
            task: None,
            params: None,
            depth: 0,
            stack: None,
            stack_incomplete: None,
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
    fn hits_without_types_have_the_registers_of_arguments() {
        let events = [
            hit("kprobe:vfs_open", "vfs_open+0x0"),
            hit("kprobe:a+0x5", "a+0x5 [ext4]"),
            hit("kprobe:ext4:b", "b+0x0 [ext4]"),
        ];
        let text = lines(&mut Formatter::new(Style::plain(), false), &events);
        assert_eq!(
            text,
            "   1.234567  cpu0   vfs_open(0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n\
             \u{20}  1.234567  cpu0   a+0x5 [ext4](0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n\
             \u{20}  1.234567  cpu0   b [ext4](0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n"
        );
    }

    #[test]
    fn typed_hits_have_a_task_and_named_arguments() {
        let task = |comm: &str, tid| Task {
            tid,
            pid: tid,
            comm: comm.to_owned(),
        };
        let typed = |ty: &str, value| Typed {
            ty: ty.into(),
            value: Some(value),
            means: None,
            error: None,
            string: None,
        };
        let Event::Hit(plain) = hit("kprobe:f", "f+0x0") else {
            unreachable!("a hit")
        };
        let hit = Event::Hit(Hit {
            task: Some(task("cat\x1b", 312)),
            params: Some(vec![
                Param {
                    name: "name".into(),
                    typed: Typed {
                        string: Some(GuestString::Whole("/etc/\x1b".to_owned())),
                        ..typed("const char *", Number::Hex(Hex(0x1000)))
                    },
                },
                Param {
                    name: "count".into(),
                    typed: typed("size_t", Number::Integer(3)),
                },
            ]),
            ..plain
        });
        let returned = Event::Return(Return {
            probe: "kretprobe:f".into(),
            ts_ns: 2_000_000_000,
            took_ns: 31_200,
            vcpu: 0,
            ip: Hex(0),
            symbol: "f+0x0".into(),
            retval: Hex(0xffff_fffe),
            regs: Registers::default(),
            task: Some(task("a", 1)),
            returned: Some(Typed {
                error: Some("ENOENT".to_owned()),
                ..typed("int", Number::Integer(-2))
            }),
            depth: 1,
            stack: None,
            stack_incomplete: None,
        });
        let text = lines(&mut Formatter::new(Style::plain(), false), &[hit, returned]);
        assert_eq!(
            text,
            "   1.234567  cpu0   cat\\x1b[312]  f(name=\"/etc/\\u{1b}\", count=3)\n\
             \u{20}  2.000000  cpu0   a[1]            f = -2 (ENOENT) after 31.2 µs\n"
        );
    }

    #[test]
    fn registers_are_below_a_hit_if_wanted() {
        let mut formatter = Formatter::new(Style::plain(), false).with_registers(true);
        let text = lines(&mut formatter, &[hit("kprobe:f", "f+0x0")]);
        let below: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(below.len(), 6, "{text}");
        assert_eq!(
            below[2],
            "              rdx 0x0000000000000000   rsi 0x0000000000000000   rdi 0x0000000000000000"
        );
        let names: Vec<&str> = below
            .iter()
            .flat_map(|row| row.split_whitespace().step_by(2))
            .collect();
        assert_eq!(names.len(), 18);
    }

    #[test]
    fn stack_has_an_indented_line_for_each_frame() {
        let Event::Hit(plain) = hit("kprobe:f", "f+0x0") else {
            unreachable!("a hit")
        };
        let frame = |symbol: Option<&str>, module: Option<&str>| StackFrame {
            address: Hex(0xffff_ffff_a000_1000),
            symbol: symbol.map(str::to_owned),
            module: module.map(str::to_owned),
        };
        let hit = Event::Hit(Hit {
            stack: Some(vec![
                frame(Some("f+0x0/0x10"), None),
                frame(Some("g+0x5/0x1a0"), Some("m\x1b")),
                frame(None, None),
            ]),
            stack_incomplete: Some("the stack cannot be read at 0x8".to_owned()),
            ..plain
        });
        let text = lines(&mut Formatter::new(Style::plain(), false), &[hit]);
        let frames: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            frames,
            [
                "                    f+0x0/0x10",
                "                    g+0x5/0x1a0 [m\\x1b]",
                "                    0xffffffffa0001000",
                "                    … the stack cannot be read at 0x8",
            ]
        );
    }

    #[test]
    fn a_system_call_has_its_own_name_and_not_that_of_its_function() {
        let returned = Event::Return(Return {
            probe: "retsyscall:openat".into(),
            ts_ns: 2_000_000_000,
            took_ns: 1_000,
            vcpu: 0,
            ip: Hex(0),
            symbol: "__x64_sys_openat+0x0".into(),
            retval: Hex(3),
            regs: Registers::default(),
            task: None,
            returned: None,
        });
        let events = [hit("syscall:openat", "__x64_sys_openat+0x0"), returned];
        let text = lines(&mut Formatter::new(Style::plain(), false), &events);
        assert_eq!(
            text,
            "   1.234567  cpu0   openat(0xffffff9c, 0x1, 0x2, 0x3, 0x4, 0x5)\n\
             \u{20}  2.000000  cpu0   openat = 0x3 after 1.0 µs\n"
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
