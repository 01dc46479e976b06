//! Mixes the guest's console with lines of hyprobe.

/// Puts the console's bytes and whole lines of our own into one stream.
///
/// A line of the console is held until the line is complete, so that no event cuts the line in two. A line that stays
/// incomplete (a prompt) is shown after a moment by [`Lines::release`].
#[derive(Debug, Default)]
pub(super) struct Lines {
    held: Vec<u8>,
    /// An incomplete line has been shown: the cursor is behind it.
    open: bool,
}

/// A line that never ends is not held for ever.
const MAX_HELD_BYTES: usize = 1024;

impl Lines {
    /// Takes bytes of the console, and appends complete lines to `out`.
    pub(super) fn console(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for &byte in bytes {
            if byte == b'\n' {
                // The guest's terminal driver ends lines for a serial line.
                while self.held.last() == Some(&b'\r') {
                    self.held.pop();
                }
                out.append(&mut self.held);
                out.push(b'\n');
                self.open = false;
            } else {
                self.held.push(byte);
                if self.held.len() >= MAX_HELD_BYTES {
                    self.release(out);
                }
            }
        }
    }

    /// Makes room for a line of our own.
    pub(super) fn begin_line(&mut self, out: &mut Vec<u8>) {
        if self.open {
            out.push(b'\n');
            self.open = false;
        }
    }

    /// Whether an incomplete line is held.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Shows the incomplete line.
    pub(super) fn release(&mut self, out: &mut Vec<u8>) {
        if self.is_holding() {
            out.append(&mut self.held);
            self.open = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_does_not_cut_a_line() {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        lines.console(b"one\r\ntw", &mut out);
        lines.begin_line(&mut out);
        out.extend_from_slice(b">> hit\n");
        lines.console(b"o\n", &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "one\n>> hit\ntwo\n");
    }

    #[test]
    fn an_event_after_a_prompt_begins_a_line() {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        lines.console(b"/ # ", &mut out);
        assert!(out.is_empty());
        lines.release(&mut out);
        lines.begin_line(&mut out);
        out.extend_from_slice(b">> hit\n");
        assert_eq!(String::from_utf8_lossy(&out), "/ # \n>> hit\n");
    }

    #[test]
    fn a_line_without_end_is_not_held_for_ever() {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        lines.console(&[b'x'; 5000], &mut out);
        assert!(lines.held.len() < MAX_HELD_BYTES);
        assert_eq!(out.len() + lines.held.len(), 5000);
    }
}
