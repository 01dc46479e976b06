//! Escapes in text that a guest has chosen.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes each character of `text` that controls a terminal, ends a line, or changes the order of other characters. A guest chooses
/// the names of its modules, symbols and tasks, and the message of its panic.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_control)
}

/// As [`printable`], for a line with columns of its own: tabs stay.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\t' && is_control(c))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().fold(String::new(), |mut out, c| {
        // Writing to a string cannot fail.
        let _ = match c {
            c if !is_escaped(c) => out.write_char(c),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "\\u{{{:x}}}", u32::from(c)),
        };
        out
    });
    Cow::Owned(escaped)
}

fn is_control(c: char) -> bool {
    let ends_line = matches!(c, '\u{2028}' | '\u{2029}');
    let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || ends_line || reorders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_others_are_not() {
        for (text, expected) in [
            ("vfs_read+0x0 [ext4]", "vfs_read+0x0 [ext4]"),
            ("é λ", "é λ"),
            ("\x1b[2J\x07\x7f", "\\x1b[2J\\x07\\x7f"),
            ("a\r\nb\tc", "a\\r\\nb\\tc"),
            (
                "\u{9b}31m\u{202e}x\u{2028}",
                "\\u{9b}31m\\u{202e}x\\u{2028}",
            ),
        ] {
            assert_eq!(printable(text), expected);
        }
    }

    #[test]
    fn tabs_stay_in_a_line_with_columns() {
        assert_eq!(printable_line("rcu: \tx\x1b[2J\n"), "rcu: \tx\\x1b[2J\\n");
        assert!(matches!(printable_line("\ta"), Cow::Borrowed(_)));
    }
}
