//! The messages on the virtio-serial ports.
//!
//! | port | inwards | outwards |
//! |---|---|---|
//! | `org.hyprobe.control` | [`ToInner`], JSON lines | [`ToOuter`], JSON lines |
//! | `org.hyprobe.events` | | [`events::Event`], JSON lines |
//! | `org.hyprobe.console` | the user's typing | the guest's output on the serial line |
//! | `org.hyprobe.clients` | connections to the control socket, in the form of [`control::mux`] | the same |
//! | `org.hyprobe.dump` | | the dump of a guest that has crashed, in the frames of [`dump::sparse`] |
//! | `org.hyprobe.log` | | hyprobe's standard output and standard error |

use std::error::Error;
use std::fmt;

use events::Summary;
use serde::{Deserialize, Serialize};

use crate::stop::StopReason;

/// A virtio-serial port, named by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The run's start, the run's end, and the stop request.
    Control,
    /// Hits and notes.
    Events,
    /// The guest's serial line.
    Console,
    /// Connections to the control socket.
    Clients,
    /// The dump of a guest that has crashed.
    Dump,
    /// hyprobe's own messages.
    Log,
}

impl Port {
    /// All ports.
    pub(super) const ALL: [Self; 6] = [
        Self::Control,
        Self::Events,
        Self::Console,
        Self::Clients,
        Self::Dump,
        Self::Log,
    ];

    /// The port's name in `/sys/class/virtio-ports/*/name` of the outer Linux.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Control => "org.hyprobe.control",
            Self::Events => "org.hyprobe.events",
            Self::Console => "org.hyprobe.console",
            Self::Clients => "org.hyprobe.clients",
            Self::Dump => "org.hyprobe.dump",
            Self::Log => "org.hyprobe.log",
        }
    }
}

/// From the outer Linux's pid 1 to the process that the user started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ToOuter {
    /// The outer Linux is up; the run begins.
    Started {
        /// Milliseconds since the outer kernel's first instruction.
        uptime_ms: u64,
    },
    /// The guest has ended. The last output follows, as fast as the launcher reads the ports.
    Ending,
    /// The run is over, or did not begin.
    Finished {
        /// The outcome of the run.
        outcome: Outcome,
        /// The bytes written before the line. The launcher reads all of these bytes before the machine is switched off.
        sent: Sent,
    },
}

/// Bytes written to the ports whose contents must all arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sent {
    /// To the events port.
    pub(super) events: u64,
    /// To the console port.
    pub(super) console: u64,
    /// To the clients port.
    pub(super) clients: u64,
    /// To the dump port.
    pub(super) dump: u64,
}

/// The outcome of a run inside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// The run has a summary.
    Summary(Summary),
    /// The run has an error.
    Failure(InnerFailure),
}

/// To the outer Linux's pid 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ToInner {
    /// End the run: ctrl-C, SIGTERM or SIGHUP.
    Stop,
    /// End the run: the output has no reader any more.
    OutputClosed,
    /// End the run: an expectation is broken.
    Broken,
    /// End the run: a thread of the launcher has panicked.
    Panicked,
}

impl From<StopReason> for ToInner {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::Signal => Self::Stop,
            StopReason::OutputClosed => Self::OutputClosed,
            StopReason::Broken => Self::Broken,
            StopReason::Panicked => Self::Panicked,
        }
    }
}

impl From<ToInner> for StopReason {
    fn from(message: ToInner) -> Self {
        match message {
            ToInner::Stop => Self::Signal,
            ToInner::OutputClosed => Self::OutputClosed,
            ToInner::Broken => Self::Broken,
            ToInner::Panicked => Self::Panicked,
        }
    }
}

/// The failure of a run inside: an error carried to the launcher, with causes and exit code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InnerFailure {
    /// The exit code of the same error on this host.
    pub exit_code: u8,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cause: Option<Box<InnerFailure>>,
}

impl InnerFailure {
    /// Converts `error` with all causes.
    pub fn new(exit_code: u8, error: &dyn Error) -> Self {
        Self {
            exit_code,
            message: error.to_string(),
            cause: error
                .source()
                .map(|cause| Box::new(Self::new(exit_code, cause))),
        }
    }

    /// A failure without an error value: a panic.
    pub(super) fn message(exit_code: u8, message: String) -> Self {
        Self {
            exit_code,
            message,
            cause: None,
        }
    }
}

impl fmt::Display for InnerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for InnerFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let cause: &InnerFailure = self.cause.as_deref()?;
        Some(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_causes_on_the_way() {
        let cause = std::io::Error::from_raw_os_error(2);
        let error = outer::QemuError::Start {
            path: "/q".into(),
            source: cause,
        };
        let sent = InnerFailure::new(3, &error);
        let line = serde_json::to_string(&sent).expect("json");
        let received: InnerFailure = serde_json::from_str(&line).expect("json");
        assert_eq!(received, sent);
        assert_eq!(received.to_string(), "cannot start /q");
        let cause = received.source().expect("cause").to_string();
        assert!(cause.contains("No such file"), "{cause}");
    }

    #[test]
    fn stop_request_keeps_its_reason() {
        for reason in [
            StopReason::Signal,
            StopReason::OutputClosed,
            StopReason::Broken,
            StopReason::Panicked,
        ] {
            assert_eq!(StopReason::from(ToInner::from(reason)), reason);
        }
    }
}
