//! JSON lines.

use events::Event;

/// Appends one event and a newline.
pub(crate) fn line(event: &Event, out: &mut Vec<u8>) {
    let start = out.len();
    match serde_json::to_writer(&mut *out, event) {
        Ok(()) => out.push(b'\n'),
        // Serialisation fails only for maps whose keys are no strings. Events have no such maps.
        Err(_) => out.truncate(start),
    }
}
