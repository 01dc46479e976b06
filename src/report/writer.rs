//! The writing thread.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use events::{Event, Note, Summary};

use super::error::{Lost, WriteFailure};
use super::frame_lines::FrameLines;
use super::lines::Lines;
use super::progress::Progress;
use super::sink::{Message, Refused};
use super::stream::Stream;
use super::style::Style;
use super::{json, text};
use crate::stop::{StopReason, StopSignal};

/// The time after which an incomplete line of the console is shown.
const PROMPT_WAIT: Duration = Duration::from_millis(100);

/// The format of events.
#[derive(Debug)]
pub(super) enum EventFormat {
    Json,
    Text(text::Formatter),
}

impl EventFormat {
    /// Appends `event` to `out`, between the lines of the console.
    fn write(&mut self, event: &Event, lines: &mut Lines, out: &mut Vec<u8>) {
        match self {
            Self::Json => json::line(event, out),
            Self::Text(formatter) => {
                lines.begin_line(out);
                formatter.event(event, out);
            }
        }
    }
}

/// The stream of the console.
#[derive(Debug)]
pub(super) enum ConsoleTarget {
    Nowhere,
    /// Between the lines of events in text.
    WithEvents,
    /// Unchanged, on a stream of its own.
    Own(Stream),
}

impl ConsoleTarget {
    /// The console's own stream, if it has one.
    pub(super) fn stream(&self) -> Option<&Stream> {
        match self {
            Self::Own(stream) => Some(stream),
            Self::Nowhere | Self::WithEvents => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) format: EventFormat,
    pub(super) events: Stream,
    pub(super) console: ConsoleTarget,
    /// The stream of the summary's table, if the events have another.
    pub(super) table: Option<(Stream, Style)>,
    /// The source lines of stacks, if there is debug information.
    pub(super) frame_lines: Option<FrameLines>,
    pub(super) progress: Progress,
    pub(super) stop: StopSignal,
}

impl Writer {
    /// Writes until [`Message::End`].
    pub(super) fn run(mut self, messages: &Receiver<Message>) -> Vec<WriteFailure> {
        let mut lines = Lines::default();
        let mut hits = 0_u64;
        loop {
            let message = match messages.try_recv() {
                Ok(message) => Ok(message),
                // The queue is empty: the batch is due.
                Err(_) => {
                    self.flush();
                    if hits > 0 {
                        self.progress.show(format!("running, {hits} hits"));
                    }
                    if lines.is_holding() {
                        messages.recv_timeout(PROMPT_WAIT)
                    } else {
                        messages.recv().map_err(|_| RecvTimeoutError::Disconnected)
                    }
                }
            };
            match message {
                Ok(Message::Event(mut event)) => {
                    self.add_frame_lines(&mut event, &mut lines);
                    hits += u64::from(matches!(*event, Event::Hit(_) | Event::Return(_)));
                    self.event(&event, &mut lines);
                    self.stop_if_closed();
                }
                Ok(Message::Console(bytes)) => {
                    self.console(&bytes, &mut lines);
                    self.stop_if_closed();
                }
                Ok(Message::End { summary, refused }) => {
                    self.events.push(|out| {
                        lines.release(out);
                        lines.begin_line(out);
                    });
                    return self.end(summary, refused);
                }
                Err(RecvTimeoutError::Timeout) => self.events.push(|out| lines.release(out)),
                // The reporter was dropped before the end of the run.
                Err(RecvTimeoutError::Disconnected) => return self.end(None, Refused::default()),
            }
        }
    }

    /// Adds source lines to the stacks of `event`. A note in front of the event has the reason why frames have none.
    fn add_frame_lines(&mut self, event: &mut Event, lines: &mut Lines) {
        let Some(frame_lines) = &mut self.frame_lines else {
            return;
        };
        frame_lines.event(event);
        for text in frame_lines.take_notes() {
            let note = Event::Note(Note {
                ts_ns: event.ts_ns(),
                probe: None,
                text,
            });
            let format = &mut self.format;
            // The note is not one of the run's events, whose number is known.
            self.events.push(|out| format.write(&note, lines, out));
        }
    }

    fn event(&mut self, event: &Event, lines: &mut Lines) {
        let format = &mut self.format;
        self.events.event(|out| format.write(event, lines, out));
    }

    fn console(&mut self, bytes: &[u8], lines: &mut Lines) {
        match &mut self.console {
            ConsoleTarget::Nowhere => {}
            ConsoleTarget::WithEvents => self.events.push(|out| lines.console(bytes, out)),
            ConsoleTarget::Own(stream) => stream.push(|out| out.extend_from_slice(bytes)),
        }
    }

    fn flush(&mut self) {
        let console = match &mut self.console {
            ConsoleTarget::Own(stream) => Some(stream),
            ConsoleTarget::Nowhere | ConsoleTarget::WithEvents => None,
        };
        for stream in [Some(&mut self.events), console].into_iter().flatten() {
            if stream.is_flushed() {
                continue;
            }
            if stream.is_terminal() {
                // The progress line would be drawn into the text.
                self.progress.clear();
            }
            stream.flush();
        }
        self.stop_if_closed();
    }

    /// Ends the run if the reader has closed its end. A queue that is never empty is never flushed, so each message calls this.
    fn stop_if_closed(&self) {
        let console = self.console.stream().is_some_and(Stream::is_closed);
        if self.events.is_closed() || console {
            self.stop.request(StopReason::OutputClosed);
        }
    }

    fn end(mut self, summary: Option<Box<Summary>>, refused: Refused) -> Vec<WriteFailure> {
        // The flush comes first, so that the summary has all losses.
        self.flush();
        self.progress.clear();
        let dropped = refused.events.saturating_add(self.events.dropped());
        if let Some(mut summary) = summary {
            // The number of a nested run is the inner hyprobe's, whose kernel a hostile guest may control.
            summary.dropped = summary.dropped.saturating_add(dropped);
            let (mut event, mut lines) = (Event::Summary(*summary), Lines::default());
            self.add_frame_lines(&mut event, &mut lines);
            self.event(&event, &mut lines);
            // The file comes first: the reader of the table may take nothing.
            self.flush();
            if let Some((stream, style)) = &mut self.table {
                stream.push(|out| text::Formatter::new(*style, false).event(&event, out));
                stream.flush();
            }
        }
        let console = match self.console {
            ConsoleTarget::Own(stream) => Some(stream),
            ConsoleTarget::Nowhere | ConsoleTarget::WithEvents => None,
        };
        let console_lost = |bytes| Lost::Bytes(bytes + refused.console_bytes);
        let is_console_shared = console.is_none();
        let console =
            console.and_then(|stream| failure(stream, refused.console_bytes > 0, console_lost));
        let refused_here = refused.events > 0 || (is_console_shared && refused.console_bytes > 0);
        let events = failure(self.events, refused_here, |bytes| Lost::Events {
            events: dropped,
            bytes: bytes + u64::from(is_console_shared) * refused.console_bytes,
        });
        let table = self
            .table
            .and_then(|(stream, _)| failure(stream, false, Lost::Bytes));
        [events, console, table].into_iter().flatten().collect()
    }
}

/// The loss of `stream`, if there is any; `lost` makes the loss of the number of bytes. `refused` says whether the queue before the
/// stream was full.
fn failure(stream: Stream, refused: bool, lost: impl FnOnce(u64) -> Lost) -> Option<WriteFailure> {
    let (stream, bytes, error) = stream.into_failure(refused)?;
    Some(WriteFailure {
        stream,
        lost: lost(bytes),
        error,
    })
}

#[cfg(test)]
mod tests;
