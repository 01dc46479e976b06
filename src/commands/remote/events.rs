//! `hyprobe events`.

use std::io::{self, IsTerminal as _, Write};

use control::api::{EventLine, Lost};
use events::Event;

use super::connect::connect;
use super::debug_file::{frame_lines, identity, print_notes};
use super::error::RemoteError;
use crate::cli::EventsArgs;
use crate::config::Format;
use crate::exit::Exit;
use crate::report::{Formatter, Style, json_line};
use crate::stderr::say;

/// Prints events as they arrive, in the form of the run's own output. With `registers`, lines of text have the registers below.
pub(crate) fn events(args: &EventsArgs, registers: bool) -> Result<Exit, RemoteError> {
    let client = connect(&args.run)?;
    // The progress would be between the events.
    let silent = |fetch| fetch;
    let mut lines = frame_lines(&args.debug_info, silent, || Ok(identity(&client)?.0))?;
    if let Some(lines) = &mut lines {
        // The events go on during a fetch.
        if let Err(error) = lines.open_on_thread() {
            say(format_args!(
                "hyprobe: frames of modules have no source lines: no thread can be started: {error}"
            ));
        }
    }
    let events = client.events(args.from)?;
    let mut out = io::stdout().lock();
    let style = Style::for_stream(io::stdout().is_terminal());
    let mut text = Formatter::new(style, false).with_registers(registers);
    let mut left = args.count.unwrap_or(u64::MAX);
    for line in events {
        if left == 0 {
            break;
        }
        let mut bytes = Vec::new();
        match line? {
            EventLine::Event { mut event, .. } => {
                if let Some(lines) = &mut lines {
                    lines.event(&mut event);
                    print_notes(lines);
                }
                match args.format.unwrap_or_default() {
                    Format::Text => text.event(&event, &mut bytes),
                    Format::Json => json_line(&event, &mut bytes),
                }
                left = match event {
                    Event::Summary(_) => 0,
                    _ => left - 1,
                };
            }
            EventLine::Lost(Lost { lost, .. }) => {
                say(format_args!("hyprobe: {lost} events came and went unread"));
            }
        }
        match out.write_all(&bytes).and_then(|()| out.flush()) {
            // The reader has closed the pipe: no more events are wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
        if left == 0 {
            break;
        }
    }
    Ok(Exit::Done)
}
