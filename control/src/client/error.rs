//! Why there is no answer.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::Problem;

/// A request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No runtime.
    #[error("cannot set up a connection")]
    Runtime(#[source] io::Error),
    /// Nobody listens.
    #[error("no run can be reached at {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The run has said no, and why.
    #[error(transparent)]
    Refused(Box<Problem>),
    /// The run has said no in a way that is not known here.
    #[error("the run answered with status {0}")]
    Status(u16),
    /// The connection has ended.
    #[error("the connection to the run has broken")]
    Broken(#[source] hyper::Error),
    /// There was a beginning of an answer.
    #[error("the run's answer has not come to its end")]
    Answer(#[source] Box<dyn Error + Send + Sync>),
    /// No answer.
    #[error("the run has not answered for {} s", .0.as_secs())]
    TooSlow(Duration),
    /// What was asked cannot be an address.
    #[error("cannot ask for that")]
    Request(#[source] hyper::http::Error),
    /// What was asked cannot be JSON.
    #[error("cannot write the request as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// The answer is something else.
    #[error("the run's answer is not what it should be; is it another version?")]
    Unreadable(#[source] serde_json::Error),
}

impl ClientError {
    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Refused(problem) => problem.help.clone(),
            Self::Connect { .. } => {
                Some("a run listens there with `hyprobe run --control PATH`".to_owned())
            }
            _ => None,
        }
    }
}
