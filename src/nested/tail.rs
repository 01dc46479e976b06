//! The end of the output of QEMU and the outer Linux, for error messages.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

/// Enough for a kernel's panic with its stack and registers.
const KEPT_BYTES: usize = 16 << 10;
/// How a kernel's panic begins.
const PANIC: &str = "Kernel panic - not syncing";
/// The number of lines shown before a panic: the last output of pid 1.
const LINES_BEFORE_PANIC: usize = 5;

/// The last bytes of a stream. Clones share the bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl Tail {
    /// Reads `source` to its end on the calling thread.
    pub(super) fn follow(&self, mut source: impl Read) {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = source.read(&mut chunk) {
            self.push(&chunk[..read]);
        }
    }

    fn push(&self, chunk: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.extend(chunk);
        let surplus = bytes.len().saturating_sub(KEPT_BYTES);
        bytes.drain(..surplus);
    }

    /// The last `lines` lines that are not empty, without terminal control characters. A kernel's panic has more lines and begins with the
    /// reason, so after a panic the lines around the panic's beginning are returned.
    pub(super) fn last_lines(&self, lines: usize) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = bytes.iter().copied().collect();
        let text: String = String::from_utf8_lossy(&bytes)
            .chars()
            .filter(|character| *character == '\n' || !character.is_control())
            .collect();
        let all: Vec<_> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let end = all.len().saturating_sub(lines);
        let panic = all.iter().rposition(|line| line.contains(PANIC));
        let first = panic.map_or(end, |panic| {
            panic.saturating_sub(LINES_BEFORE_PANIC).min(end)
        });
        all[first..]
            .iter()
            .take(lines)
            .copied()
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_shown_from_its_reason_on() {
        let tail = Tail::default();
        let stack = "  frame\n".repeat(40);
        let text = format!(
            "boot\nhyprobe: no\nKernel panic - not syncing: killed\n{stack}Offset: disabled\n"
        );
        tail.follow(text.as_bytes());
        let shown = tail.last_lines(10);
        assert!(
            shown.starts_with("boot\nhyprobe: no\nKernel panic"),
            "{shown}"
        );
        assert_eq!(shown.lines().count(), 10);
    }

    #[test]
    fn the_end_is_kept_and_made_printable() {
        let tail = Tail::default();
        tail.follow(&vec![b'x'; 3 * KEPT_BYTES][..]);
        tail.follow(&b"\r\n\x1b[2Jone\r\n\r\ntwo\r\nthree"[..]);
        assert_eq!(tail.last_lines(2), "two\nthree");
        assert_eq!(tail.bytes.lock().expect("lock").len(), KEPT_BYTES);
    }
}
