//! A line of text, and the time in it.

use std::io::Write as _;

/// Appends a line to `out`.
pub(super) fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    let _ = writeln!(out, "{text}");
}

/// Seconds with six digits behind the point.
pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1000)
}
