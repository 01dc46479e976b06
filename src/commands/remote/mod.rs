//! Commands for a run in progress: clients of the run's control socket.

mod ctl;
mod error;
mod events;
mod list;
mod probe;
mod top;
mod words;

use control::Client;

pub(crate) use self::ctl::ctl;
pub(crate) use self::error::RemoteError;
pub(crate) use self::events::events;
pub(crate) use self::probe::probe;
pub(crate) use self::top::top;
use crate::cli::SocketArgs;

fn connect(run: &SocketArgs) -> Result<Client, RemoteError> {
    Ok(Client::new(&run.socket)?)
}

/// Nanoseconds as people read them.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{}.{} µs", ns / 1000, ns / 100 % 10),
        _ => format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_that_suits_them() {
        assert_eq!(time(9_999), "9999 ns");
        assert_eq!(time(12_345), "12.3 µs");
        assert_eq!(time(12_345_678), "12.3 ms");
    }
}
