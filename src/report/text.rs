//! Events for people.

use std::borrow::Cow;
use std::time::Instant;

use events::{
    DataRead, DataWrite, Event, Field, Hex, Note, Param, ProgramFrame, Registers, StackFrame, Task,
};
use manifest::ProbeKind;

use super::edge::Edge;
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
    edge: Edge,
    /// The beginning of each line, if the console writes to the same stream.
    prefix: &'static str,
    task_width: usize,
    /// Whether the details of the task and the registers are below a line.
    registers: bool,
}

impl Formatter {
    /// `among_console` marks the lines, because the guest's console is between them.
    pub fn new(style: Style, among_console: bool) -> Self {
        let prefix = if among_console { ">> " } else { "" };
        Self {
            style,
            edge: Edge::new(style.width),
            prefix,
            task_width: 0,
            registers: false,
        }
    }

    /// With `registers`, hits and returns have the details of the task and the registers below, in lines of their own.
    #[must_use]
    pub fn with_registers(self, registers: bool) -> Self {
        Self { registers, ..self }
    }

    /// Appends one event as a line, the summary as a table.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        self.style.width = self.edge.columns(Instant::now());
        match event {
            Event::Hit(hit) => {
                let params: Vec<String> = match (&hit.fields, &hit.params) {
                    (Some(fields), _) => fields.0.iter().map(Field::to_string).collect(),
                    (None, Some(params)) => params.iter().map(Param::to_string).collect(),
                    (None, None) => hit.args.iter().map(Hex::to_string).collect(),
                };
                let when = (hit.ts_ns, hit.vcpu, hit.task.as_ref());
                let depth = hit.depth;
                let function = match (named(&hit.probe), &hit.params) {
                    (Some(name), _) => name.to_owned(),
                    // The symbol of a mark has no offset.
                    (None, Some(_)) if is_at_marks(&hit.probe) => hit.symbol.to_string(),
                    (None, Some(_)) if is_behind_entry(&hit.symbol) => hit.symbol.to_string(),
                    (None, Some(_)) => function(&hit.symbol),
                    (None, None) => entry(&hit.symbol),
                };
                let said = match (&hit.write, &hit.read) {
                    (Some(write), _) => written(write, &hit.symbol),
                    (None, Some(read)) => was_read(read, &hit.symbol),
                    (None, None) => format!("({})", params.join(", ")),
                };
                self.row(when, depth, &function, &said, out);
                self.task_details(hit.task.as_ref(), out);
                self.registers(&hit.regs, out);
                self.stack(hit.stack.as_deref(), hit.stack_incomplete.as_deref(), out);
                let incomplete = hit.program_stack_incomplete.as_deref();
                self.program_stack(hit.program_stack.as_deref(), incomplete, out);
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
                self.task_details(ret.task.as_ref(), out);
                self.registers(&ret.regs, out);
                self.stack(ret.stack.as_deref(), ret.stack_incomplete.as_deref(), out);
                let incomplete = ret.program_stack_incomplete.as_deref();
                self.program_stack(ret.program_stack.as_deref(), incomplete, out);
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

    /// Appends the line with the user, parent and cgroup of a task, if lines below a hit are wanted.
    fn task_details(&self, task: Option<&Task>, out: &mut Vec<u8>) {
        let details = task.filter(|_| self.registers).map(Task::details);
        let Some(details) = details.filter(|details| !details.is_empty()) else {
            return;
        };
        let details = printable(&details);
        let width = self.style.width;
        let details = cut(
            &details,
            width.map(|width| width.saturating_sub(STACK_INDENT)),
        );
        line(
            out,
            format_args!(
                "{}{:STACK_INDENT$}{}",
                self.style.paint(Ink::Faint, self.prefix),
                "",
                self.style.paint(Ink::Faint, &details),
            ),
        );
    }

    fn registers(&self, regs: &Registers, out: &mut Vec<u8>) {
        if !self.registers {
            return;
        }
        for row in registers(regs) {
            let row = row.map(|(name, value)| match name {
                // The upper half is reserved.
                "rflags" => format!("{name} {:#010x}", value.0),
                _ => format!("{name:>3} {:#018x}", value.0),
            });
            line(
                out,
                format_args!(
                    "{}{:11}{}",
                    self.style.paint(Ink::Faint, self.prefix),
                    "",
                    self.style.paint(Ink::Faint, row.join(" ")),
                ),
            );
        }
    }

    /// Appends the lines of a kernel stack.
    fn stack(&self, frames: Option<&[StackFrame]>, incomplete: Option<&str>, out: &mut Vec<u8>) {
        let frames = frames.into_iter().flatten().flat_map(StackFrame::text);
        self.frames(frames, incomplete, out);
    }

    /// Appends the lines of a program's stack.
    fn program_stack(
        &self,
        frames: Option<&[ProgramFrame]>,
        incomplete: Option<&str>,
        out: &mut Vec<u8>,
    ) {
        let frames = frames.into_iter().flatten().map(ProgramFrame::to_string);
        self.frames(frames, incomplete, out);
    }

    /// Appends a line for each frame.
    fn frames(
        &self,
        frames: impl Iterator<Item = String>,
        incomplete: Option<&str>,
        out: &mut Vec<u8>,
    ) {
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
        frames.for_each(|text| indented(&text));
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

/// Whether `symbol` is behind the entry of its function, where the parameters are those of a source line. An entry may have an `endbr64` in front.
fn is_behind_entry(symbol: &str) -> bool {
    let offset = symbol.split_once('+').map(|(_, offset)| offset);
    let offset = offset.and_then(|offset| offset.split(' ').next());
    offset.is_some_and(|offset| !matches!(offset, "0x0" | "0x4"))
}

/// A write, behind the name of the watched data.
fn written(write: &DataWrite, symbol: &str) -> String {
    let part = part(write.offset, write.copy);
    format!("{part} = {}, was {}, by {symbol}", write.new, write.old)
}

/// A read, behind the name of the watched data.
fn was_read(read: &DataRead, symbol: &str) -> String {
    let part = part(read.offset, read.copy);
    format!("{part} is {}, read by {symbol}", read.value)
}

/// The offset of a word in a watchpoint of several, and the processor whose copy of a per-CPU variable it is.
fn part(offset: u16, copy: Option<u16>) -> String {
    let offset = match offset {
        0 => String::new(),
        offset => format!("+{offset:#x}"),
    };
    match copy {
        Some(cpu) => format!("{offset} of cpu{cpu}"),
        None => offset,
    }
}

fn is_at_marks(probe: &str) -> bool {
    let kind = probe.split_once(':').map(|(kind, _)| kind);
    kind == Some(ProbeKind::Usdt.keyword())
}

/// The system call, tracepoint or watched data of a probe.
fn named(probe: &str) -> Option<&str> {
    let (kind, name) = probe.split_once(':')?;
    let is = |known: ProbeKind| known.keyword() == kind;
    if is(ProbeKind::Tracepoint) {
        // The site follows the name if the tracepoint has several.
        return name.split('@').next();
    }
    let is_named = is(ProbeKind::Syscall) || is(ProbeKind::Retsyscall) || is(ProbeKind::Watch);
    is_named.then_some(name)
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
mod tests;
