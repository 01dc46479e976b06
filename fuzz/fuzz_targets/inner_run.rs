//! Events and the summary from the hyprobe inside a nested run. A guest in control of the inner hyprobe can send arbitrary bytes.

#![cfg_attr(fuzzing, no_main)]

use events::Event;
use hyprobe::report::{Formatter, Style, printable};
use hyprobe_fuzz::fuzz_target;

/// Maximum number of text bytes for each byte of JSON. A bucket of a histogram has at least 8 bytes, and the bucket's row has 83. All other
/// parts of an event have a smaller ratio.
const FACTOR: usize = 11;
/// The longest line with columns as wide as they can be.
const LINE_BYTES: usize = 2048;

fuzz_target!(|bytes: &[u8]| {
    let mut formatter = Formatter::new(Style::plain(), true);
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Event>(line) else {
            continue;
        };
        let mut text = Vec::new();
        formatter.event(&event, &mut text);
        let text = String::from_utf8(text).expect("text");
        for line in text.lines() {
            assert_eq!(printable(line), line);
        }
        if !matches!(event, Event::Summary(_)) {
            assert_eq!(text.lines().count(), 1, "{text:?}");
        }
        let limit = FACTOR * line.len() + LINE_BYTES;
        assert!(
            text.len() <= limit,
            "{} bytes of {}",
            text.len(),
            line.len()
        );

        let again = serde_json::to_vec(&event).expect("JSON");
        let again: Event = serde_json::from_slice(&again).expect("an event");
        assert_eq!(again, event);
    }
});
