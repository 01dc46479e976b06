//! The thread that writes.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use probes::{Event, Summary};

use super::lines::Lines;
use super::sink::Message;
use super::stream::Stream;
use super::style::Style;
use super::{Progress, WriteFailure, json, text};
use crate::stop::{StopReason, StopSignal};

/// An incomplete line of the console that has waited for so long is shown as it is.
const PROMPT_WAIT: Duration = Duration::from_millis(100);

/// How events are written.
#[derive(Debug)]
pub(super) enum EventFormat {
    Json,
    Text(text::Formatter),
}

/// Where the console goes.
#[derive(Debug)]
pub(super) enum ConsoleTarget {
    Nowhere,
    /// Between the lines of events in text.
    WithEvents,
    /// As it is.
    Own(Stream),
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) format: EventFormat,
    pub(super) events: Stream,
    pub(super) console: ConsoleTarget,
    /// Where the summary's table goes, if the events go elsewhere.
    pub(super) table: Option<(Stream, Style)>,
    pub(super) progress: Progress,
    pub(super) stop: StopSignal,
}

impl Writer {
    /// Writes until the end is sent.
    pub(super) fn run(mut self, messages: &Receiver<Message>) -> Option<WriteFailure> {
        let mut lines = Lines::default();
        let mut hits = 0_u64;
        loop {
            let message = match messages.try_recv() {
                Ok(message) => Ok(message),
                // Nothing more on its way: what has been collected is due.
                Err(_) => {
                    self.flush();
                    if hits > 0 {
                        self.progress.say(format!("running, {hits} hits"));
                    }
                    if lines.is_holding() {
                        messages.recv_timeout(PROMPT_WAIT)
                    } else {
                        messages.recv().map_err(|_| RecvTimeoutError::Disconnected)
                    }
                }
            };
            match message {
                Ok(Message::Event(event)) => {
                    hits += u64::from(matches!(*event, Event::Hit(_) | Event::Return(_)));
                    self.event(&event, &mut lines);
                }
                Ok(Message::Console(bytes)) => self.console(&bytes, &mut lines),
                Ok(Message::End { summary, dropped }) => {
                    self.events.push(|out| {
                        lines.release(out);
                        lines.begin_line(out);
                    });
                    return self.end(summary, dropped);
                }
                Err(RecvTimeoutError::Timeout) => self.events.push(|out| lines.release(out)),
                // The reporter was dropped: the run was not brought to its end.
                Err(RecvTimeoutError::Disconnected) => return self.end(None, 0),
            }
        }
    }

    fn event(&mut self, event: &Event, lines: &mut Lines) {
        let format = &mut self.format;
        self.events.event(|out| match format {
            EventFormat::Json => json::line(event, out),
            EventFormat::Text(formatter) => {
                lines.begin_line(out);
                formatter.event(event, out);
            }
        });
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
                // The line would be drawn into the text.
                self.progress.clear();
            }
            stream.flush();
            if stream.is_closed() {
                self.stop.request(StopReason::OutputClosed);
            }
        }
    }

    fn end(mut self, summary: Option<Box<Summary>>, dropped: u64) -> Option<WriteFailure> {
        // Flushed first, so that the summary knows what has been lost.
        self.flush();
        self.progress.clear();
        let dropped = dropped + self.events.dropped();
        if let Some(mut summary) = summary {
            summary.dropped += dropped;
            let event = Event::Summary(*summary);
            self.event(&event, &mut Lines::default());
            if let Some((mut stream, style)) = self.table.take() {
                stream.push(|out| text::Formatter::new(style, false).event(&event, out));
                stream.flush();
            }
            self.flush();
        }
        if self.events.is_closed() {
            return None;
        }
        let (stream, source) = self.events.into_failure()?;
        Some(WriteFailure {
            stream,
            dropped,
            source,
        })
    }
}

#[cfg(test)]
mod tests;
