//! The connection to a run's control socket.

use control::Client;

use super::error::RemoteError;
use crate::cli::SocketArgs;

/// Connects to the control socket of `run`.
pub(super) fn connect(run: &SocketArgs) -> Result<Client, RemoteError> {
    Ok(Client::new(&run.socket)?)
}
