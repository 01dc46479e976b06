//! The output of a run: events, the guest's console, the summary.
//!
//! ```text
//! vCPU threads ── Sink ──────────┐                    ┌── standard output or --output: text or JSON lines
//!                                ├── queue ── writing thread
//! the serial port ── Console ────┘                    └── standard output or standard error: console
//! ```
//!
//! Formatting and writing happen on one thread, in the order of the posts. While the queue has no room, no vCPU enters the guest
//! (`outbox`): a slow reader slows the guest down and loses nothing. After the guest's end, a reader that takes nothing for
//! `STALL_LIMIT` is given up. Lost events and bytes are counted.

mod code_lines;
mod edge;
mod error;
mod frame_lines;
mod json;
mod lines;
mod module_lines;
mod module_opener;
mod printable;
mod progress;
mod sink;
mod stack_text;
mod stream;
mod style;
mod table;
mod text;
mod text_line;
mod writer;

use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use confine::ThreadKind;
use crossbeam_channel::Receiver;
use events::{EventSink, Summary};

pub(crate) use self::error::{OutputError, ReportError};
use self::error::{WriteFailure, WriteFailures};
pub(crate) use self::frame_lines::FrameLines;
pub(crate) use self::json::line as json_line;
pub use self::printable::{printable, printable_line};
pub(crate) use self::progress::Progress;
use self::sink::{ConsoleWriter, Message, Posts, QueueSink};
pub(crate) use self::stack_text::StackText;
use self::stream::{Stream, Written};
pub(crate) use self::style::Ink;
pub use self::style::Style;
pub(crate) use self::table::total;
pub use self::text::Formatter;
use self::writer::{ConsoleTarget, EventFormat, Writer};
use crate::config::{Console, Format, OutputConfig};
use crate::outbox::Outbox;
use crate::stop::{StopReason, StopSignal};

/// After the guest's end, the output is given up if no byte is written for this time. A pager may be slow.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// The same after ctrl-C or SIGTERM: the user prefers the end to the rest of the output.
const STALL_LIMIT_STOPPED: Duration = Duration::from_secs(3);
/// The period of looking for the progress of the writing thread.
const LOOK: Duration = Duration::from_millis(20);

/// Writes the output of a run.
#[derive(Debug)]
pub(crate) struct Reporter {
    outbox: Outbox<Message>,
    posts: Arc<Posts>,
    written: Arc<Written>,
    thread: JoinHandle<Vec<WriteFailure>>,
    console: Console,
    is_on_terminal: bool,
    stop: StopSignal,
}

/// A run's output, open and without a writing thread.
#[derive(Debug)]
pub(crate) struct Opened {
    writer: Writer,
    receiver: Receiver<Message>,
    outbox: Outbox<Message>,
    written: Arc<Written>,
    console: Console,
    is_on_terminal: bool,
    stop: StopSignal,
}

impl Opened {
    /// Starts the writing thread.
    ///
    /// # Errors
    ///
    /// If the host has no thread to give.
    pub(crate) fn start(self) -> Result<Reporter, ReportError> {
        let Self {
            mut writer,
            receiver,
            ..
        } = self;
        if let Some(lines) = &mut writer.frame_lines {
            lines.open_on_thread().map_err(ReportError::FilesThread)?;
        }
        let thread = std::thread::Builder::new()
            .name("report".to_owned())
            .spawn(move || {
                confine::enter(ThreadKind::Report);
                writer.run(&receiver)
            })
            .map_err(ReportError::Thread)?;
        Ok(Reporter {
            outbox: self.outbox,
            posts: Arc::default(),
            written: self.written,
            thread,
            console: self.console,
            is_on_terminal: self.is_on_terminal,
            stop: self.stop,
        })
    }
}

impl Reporter {
    /// Opens the files. With `frame_lines`, frames of stacks have source lines.
    ///
    /// # Errors
    ///
    /// If a file cannot be created.
    pub(crate) fn open(
        output: &OutputConfig,
        console: &Console,
        frame_lines: Option<FrameLines>,
        progress: Progress,
        stop: &StopSignal,
    ) -> Result<Opened, ReportError> {
        let written = Arc::<Written>::default();
        let style = Style::for_stream(io::stdout().is_terminal());
        let (events, events_style) = match &output.output {
            Some(path) => (file(path, &written)?, Style::plain()),
            None => (Stream::stdout(&written), style),
        };
        let json_on_stdout = output.output.is_none() && output.format == Format::Json;
        let console_target = match console {
            Console::None => ConsoleTarget::Nowhere,
            Console::File(path) => ConsoleTarget::Own(file(path, &written)?),
            Console::Stdio if json_on_stdout => ConsoleTarget::Own(Stream::stderr(&written)),
            Console::Stdio if output.output.is_none() => ConsoleTarget::WithEvents,
            Console::Stdio => ConsoleTarget::Own(Stream::stdout(&written)),
        };
        let streams = [Some(&events), console_target.stream()];
        let is_on_terminal = streams.into_iter().flatten().any(Stream::is_terminal);
        let shared = matches!(console_target, ConsoleTarget::WithEvents);
        let (outbox, receiver) = Outbox::new();
        let writer = Writer {
            format: match output.format {
                Format::Json => EventFormat::Json,
                Format::Text => {
                    let formatter = text::Formatter::new(events_style, shared);
                    EventFormat::Text(formatter.with_registers(output.registers))
                }
            },
            events,
            console: console_target,
            // The table goes to standard output, unless the events do.
            table: output
                .output
                .is_some()
                .then(|| (Stream::stdout(&written), style)),
            frame_lines,
            progress,
            stop: stop.clone(),
        };
        Ok(Opened {
            writer,
            receiver,
            outbox,
            written,
            console: console.clone(),
            is_on_terminal,
            stop: stop.clone(),
        })
    }

    /// Takes the run's events.
    pub(crate) fn sink(&self) -> Arc<dyn EventSink> {
        Arc::new(QueueSink::new(self.outbox.clone(), self.posts.clone()))
    }

    /// Takes the guest's console.
    pub(crate) fn console(&self) -> Box<dyn Write + Send> {
        match self.console {
            Console::None => Box::new(io::sink()),
            Console::Stdio | Console::File(_) => {
                let posts = Arc::clone(&self.posts);
                Box::new(ConsoleWriter::new(self.outbox.clone(), posts))
            }
        }
    }

    /// Writes the summary, if the run has come to one, and everything in the queue. The guest must have ended.
    ///
    /// # Errors
    ///
    /// If a stream failed for another reason than a reader that closed its end of a pipe. After [`OutputError::Stalled`], the
    /// writing thread still waits for the reader; only the end of the process ends the thread.
    pub(crate) fn finish(self, summary: Option<Summary>) -> Result<(), OutputError> {
        let dropped_before = summary.as_ref().map_or(0, |summary| summary.dropped);
        let summary = summary.map(Box::new);
        // This and the join only fail if the writing thread has panicked, which is noted (`panics.rs`).
        let _ = self.outbox.post_last(Message::End {
            summary,
            refused: self.posts.refused(),
        });
        self.await_output(dropped_before)?;
        let failures = self.thread.join().unwrap_or_default();
        match failures.is_empty() {
            true => Ok(()),
            false => Err(WriteFailures(failures).into()),
        }
    }

    /// Waits for the end of the writing thread while the thread makes progress. `dropped_before` is the number of events that
    /// never came here.
    fn await_output(&self, dropped_before: u64) -> Result<(), OutputError> {
        let mut bytes = self.written.bytes();
        // The loop counts its periods: the time in which this process is stopped (ctrl-Z) does not count.
        let mut still = Duration::ZERO;
        while !self.thread.is_finished() {
            still = match self.written.bytes() {
                now if now == bytes => still + LOOK,
                now => {
                    bytes = now;
                    Duration::ZERO
                }
            };
            let is_late = match self.stop.asked() {
                Some(StopReason::Signal) => still >= STALL_LIMIT_STOPPED,
                // A stopped terminal has a user, who can end the wait by ctrl-Q or ctrl-C.
                _ => still >= STALL_LIMIT && !self.is_on_terminal,
            };
            if is_late {
                let (posted, written) = (self.posts.events(), self.written.events());
                return Err(OutputError::Stalled {
                    events: lost_events(dropped_before, posted, written),
                    after: still,
                });
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

fn file(path: &Path, written: &Arc<Written>) -> Result<Stream, ReportError> {
    files::create(path)
        .map(|file| Stream::new(path.display().to_string(), file, false, written))
        .map_err(|source| ReportError::Create {
            path: path.to_owned(),
            source,
        })
}

/// The number of lost events of the run and of this output. The former number of a nested run is the inner hyprobe's, whose kernel a
/// hostile guest may control.
fn lost_events(dropped_before: u64, posted: u64, written: u64) -> u64 {
    dropped_before
        .saturating_add(posted)
        .saturating_sub(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_end_at_the_greatest_number() {
        assert_eq!(lost_events(2, 5, 3), 4);
        assert_eq!(lost_events(u64::MAX, 5, 0), u64::MAX);
    }
}
