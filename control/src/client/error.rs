//! Errors of the client.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::Problem;

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client cannot create its runtime.
    #[error("cannot set up a connection")]
    Runtime(#[source] io::Error),
    /// No run listens at the path.
    #[error("no run can be reached at {path}")]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The run has refused the request with a problem.
    #[error(transparent)]
    Refused(Box<Problem>),
    /// The run has refused the request without a problem known to the client.
    #[error("the run answered with status {0}")]
    Status(u16),
    /// The connection has broken.
    #[error("the connection to the run has broken")]
    Broken(#[source] hyper::Error),
    /// The answer broke off or was too long.
    #[error("the run's answer has not come to its end")]
    Answer(#[source] Box<dyn Error + Send + Sync>),
    /// The answer did not arrive in time.
    #[error("the run has not answered for {} s", .0.as_secs())]
    TooSlow(Duration),
    /// The path is not a valid address.
    #[error("cannot ask for that")]
    Request(#[source] hyper::http::Error),
    /// The request's body cannot be written as JSON.
    #[error("cannot write the request as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// The answer is not the expected JSON.
    #[error("the run's answer is not what it should be; is it another version?")]
    Unreadable(#[source] serde_json::Error),
}

impl ClientError {
    /// Advice for the user.
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
