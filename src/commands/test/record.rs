//! The last output and the last events of a guest, to explain a failure. The size is bounded.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use events::{Crash, Event, EventSink};

use crate::report::{Formatter, Style, printable};

/// The maximum number of kept console bytes.
const CONSOLE_BYTES: usize = 1 << 20;
/// The maximum number of kept hits, returns and notes.
const EVENTS: usize = 1000;

/// The end of the console. Clones share the bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct ConsoleTail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl Write for ConsoleTail {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &chunk[chunk.len().saturating_sub(CONSOLE_BYTES)..];
        let surplus = (bytes.len() + kept.len()).saturating_sub(CONSOLE_BYTES);
        bytes.drain(..surplus);
        bytes.extend(kept);
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ConsoleTail {
    /// The bytes as written by the guest.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.make_contiguous().to_vec()
    }
}

/// The last `count` lines of a console, fit for a terminal.
pub(super) fn last_lines(console: &[u8], count: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(console);
    let is_shown = |line: &&str| !line.trim().is_empty();
    let mut lines: Vec<String> = text
        .rsplit('\n')
        .filter(is_shown)
        .take(count)
        .map(|line| printable(line.trim_end_matches('\r')).into_owned())
        .collect();
    lines.reverse();
    lines
}

/// The last events.
#[derive(Debug, Default)]
pub(super) struct LastEvents {
    events: Mutex<VecDeque<Event>>,
}

impl EventSink for LastEvents {
    fn event(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }
}

impl LastEvents {
    /// From the oldest on.
    pub(super) fn take(&self) -> Vec<Event> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *events).into()
    }
}

/// Events as `hyprobe run` prints them.
pub(super) fn in_words(events: &[Event]) -> String {
    let mut formatter = Formatter::new(Style::plain(), false);
    let mut out = Vec::new();
    for event in events {
        formatter.event(event, &mut out);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Registers and stack of a panicked kernel.
pub(super) fn crash_in_words(crash: &Crash) -> String {
    let task = crash.task.as_deref().unwrap_or("unknown");
    let mut text = format!("vCPU {}, task {}\n", crash.vcpu, printable(task));
    let regs = &crash.regs;
    for (number, (name, value)) in [
        ("rip", regs.rip),
        ("rsp", regs.rsp),
        ("rflags", regs.rflags),
        ("rax", regs.rax),
        ("rbx", regs.rbx),
        ("rcx", regs.rcx),
        ("rdx", regs.rdx),
        ("rsi", regs.rsi),
        ("rdi", regs.rdi),
        ("rbp", regs.rbp),
        ("r8", regs.r8),
        ("r9", regs.r9),
        ("r10", regs.r10),
        ("r11", regs.r11),
        ("r12", regs.r12),
        ("r13", regs.r13),
        ("r14", regs.r14),
        ("r15", regs.r15),
    ]
    .into_iter()
    .enumerate()
    {
        let end = if number % 3 == 2 { '\n' } else { ' ' };
        text += &format!("{name:>6} {:016x}{end}", value.0);
    }
    text += "stack:\n";
    for frame in &crash.frames {
        let mut lines = frame.to_stack_frame().text();
        let own = lines.pop().unwrap_or_default();
        for inlined in lines {
            text += &format!("  {:18} {}\n", "", printable(&inlined));
        }
        text += &format!("  {} {}\n", frame.ip, printable(&own));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_of_a_panic_have_their_source_lines() {
        let registers = [
            "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15", "rip", "rflags",
        ];
        let registers = registers.map(|name| (name.to_owned(), "0x0".into()));
        let registers: serde_json::Map<_, _> = registers.into_iter().collect();
        let inlined = [serde_json::json!({ "function": "leaf", "file": "leaf.h", "line": 4 })];
        let frames = serde_json::json!([
            {
                "ip": "0xffffffff81000005", "symbol": "f+0x5/0x10", "is_return_address": true,
                "source": { "file": "a.c", "line": 5, "inlined": inlined },
            },
            { "ip": "0xffffffffa0000005", "symbol": "g+0x5/0x10 [m]" },
        ]);
        let crash = serde_json::json!({ "vcpu": 0, "regs": registers, "frames": frames });
        let crash: Crash = serde_json::from_value(crash).expect("a crash");
        let text = crash_in_words(&crash);
        let (_, stack) = text.split_once("stack:\n").expect("a stack");
        let expected = "                     [inlined] leaf leaf.h:4
  0xffffffff81000005 f+0x5/0x10 a.c:5
  0xffffffffa0000005 g+0x5/0x10 [m]
";
        assert_eq!(stack, expected);
    }

    #[test]
    fn the_end_of_a_console_is_kept() {
        let mut tail = ConsoleTail::default();
        for _ in 0..3 {
            tail.write_all(&vec![b'x'; CONSOLE_BYTES - 1])
                .expect("write");
        }
        tail.write_all(&vec![b'y'; 2 * CONSOLE_BYTES])
            .expect("write");
        tail.write_all(b"\r\n\x1b[1mone\r\n\r\ntwo").expect("write");
        let bytes = tail.bytes();
        assert_eq!(bytes.len(), CONSOLE_BYTES);
        assert_eq!(last_lines(&bytes, 2), ["\\x1b[1mone", "two"]);
    }
}
