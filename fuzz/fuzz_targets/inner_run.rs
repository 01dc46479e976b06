//! Events and the summary, as the hyprobe inside a nested run sends them. A guest that has taken over that hyprobe sends anything.

#![cfg_attr(fuzzing, no_main)]

use hyprobe_fuzz::fuzz_target;
use probes::Event;

#[path = "../../src/report"]
#[allow(dead_code, reason = "only what makes text of events is called")]
mod report {
    mod printable;
    pub(crate) mod style;
    mod table;
    pub(crate) mod text;
}

use report::style::Style;
use report::text::Formatter;

/// Bytes of text for each byte of JSON. A bucket of a histogram has 12 bytes at least, and its row has 84; a character that is escaped has 3, and
/// its escape has 8; a probe has 60, and what its cells are padded with has less than 300.
const FACTOR: usize = 16;
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
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(is_control), "{text:?}");
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
