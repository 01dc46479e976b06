//! What a run tells its user: events, the guest's console, the summary.
//!
//! ```text
//! vCPU threads ── Sink ──────────┐ bounded            ┌── standard output or --output: text or JSON lines
//!                                ├── channel ── writer thread
//! the serial port ── Console ────┘                    └── standard output or standard error: console
//! ```
//!
//! Formatting and writing happen on one thread, in the order of the sends. A vCPU waits when the channel is full, so
//! that a slow reader slows the guest down and loses nothing. Whatever cannot be written is counted.

mod json;
mod lines;
mod progress;
mod sink;
mod stream;
mod style;
mod table;
mod text;
mod writer;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use probes::{EventSink, Summary};

pub(crate) use self::json::line as json_line;
pub(crate) use self::progress::Progress;
use self::sink::{ChannelSink, ConsoleWriter, Message, Outbox};
use self::stream::Stream;
pub(crate) use self::style::{Ink, Style};
pub(crate) use self::text::Formatter;
use self::writer::{ConsoleTarget, EventFormat, Writer};
use crate::config::{Console, Format, OutputConfig};
use crate::stop::StopSignal;

/// Events that may wait for the writer: enough for a burst, little enough that the screen does not lag behind.
const CHANNEL_MESSAGES: usize = 4096;

/// Why nothing can be reported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    /// A file for events or for the console cannot be made.
    #[error("cannot write to {path}")]
    Create {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The host has no thread to give.
    #[error("cannot start the thread that writes events")]
    Thread(#[source] io::Error),
}

/// A stream that took no more.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to {stream}: {dropped} events are lost")]
pub(crate) struct WriteFailure {
    /// Which one.
    pub(crate) stream: String,
    /// Events lost.
    pub(crate) dropped: u64,
    /// What the system said.
    pub(crate) source: io::Error,
}

/// Writes what a run tells.
#[derive(Debug)]
pub(crate) struct Reporter {
    messages: Sender<Message>,
    outbox: Outbox,
    sink: Arc<ChannelSink>,
    thread: JoinHandle<Option<WriteFailure>>,
    console: Console,
}

impl Reporter {
    /// Opens the files and starts the writer.
    pub(crate) fn start(
        output: &OutputConfig,
        console: &Console,
        progress: Progress,
        stop: &StopSignal,
    ) -> Result<Self, ReportError> {
        let style = Style::for_stream(io::stdout().is_terminal());
        let (events, events_style) = match &output.output {
            Some(path) => (file(path)?, Style::plain()),
            None => (Stream::stdout(), style),
        };
        let json_on_stdout = output.output.is_none() && output.format == Format::Json;
        let console_target = match console {
            Console::None => ConsoleTarget::Nowhere,
            Console::File(path) => ConsoleTarget::Own(file(path)?),
            Console::Stdio if json_on_stdout => ConsoleTarget::Own(Stream::stderr()),
            Console::Stdio if output.output.is_none() => ConsoleTarget::WithEvents,
            Console::Stdio => ConsoleTarget::Own(Stream::stdout()),
        };
        let shared = matches!(console_target, ConsoleTarget::WithEvents);
        let (messages, receiver) = crossbeam_channel::bounded(CHANNEL_MESSAGES);
        let writer = Writer {
            format: match output.format {
                Format::Json => EventFormat::Json,
                Format::Text => EventFormat::Text(text::Formatter::new(events_style, shared)),
            },
            events,
            console: console_target,
            // The table is for whoever sits before standard output, unless the events are there.
            table: output.output.is_some().then(|| (Stream::stdout(), style)),
            progress,
            stop: stop.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("report".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(ReportError::Thread)?;
        let outbox = Outbox::new(messages.clone(), stop.clone());
        let sink = Arc::new(ChannelSink::new(outbox.clone()));
        Ok(Self {
            messages,
            outbox,
            sink,
            thread,
            console: console.clone(),
        })
    }

    /// Takes the run's events.
    pub(crate) fn sink(&self) -> Arc<dyn EventSink> {
        Arc::clone(&self.sink) as Arc<dyn EventSink>
    }

    /// Takes the guest's console.
    pub(crate) fn console(&self) -> Box<dyn Write + Send> {
        match self.console {
            Console::None => Box::new(io::sink()),
            Console::Stdio | Console::File(_) => Box::new(ConsoleWriter::new(self.outbox.clone())),
        }
    }

    /// Writes the summary, if the run has come to have one, and everything that is still on its way.
    ///
    /// # Errors
    ///
    /// When something could not be written, but for a reader that has closed its end of a pipe.
    pub(crate) fn finish(self, summary: Option<Summary>) -> Result<(), WriteFailure> {
        let summary = summary.map(Box::new);
        // This and the join only fail when the writer has panicked, which the panic hook has printed.
        let _ = self.messages.send(Message::End {
            summary,
            dropped: self.sink.dropped(),
        });
        self.thread.join().ok().flatten().map_or(Ok(()), Err)
    }
}

fn file(path: &Path) -> Result<Stream, ReportError> {
    File::create(path)
        .map(|file| Stream::new(path.display().to_string(), file, false))
        .map_err(|source| ReportError::Create {
            path: path.to_owned(),
            source,
        })
}
