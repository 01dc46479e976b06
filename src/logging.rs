//! The log, on standard error: for errors of hyprobe or of the host.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::stderr::say;

/// Starts the log: warnings, and more for each `-v`. `RUST_LOG`, if set, decides instead.
pub(crate) fn start(verbosity: u8) {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) => text.parse().unwrap_or_else(|error| {
            say(format_args!(
                "hyprobe: RUST_LOG={text} is no filter ({error}): warnings are logged"
            ));
            by_verbosity(0)
        }),
        Err(_) => by_verbosity(verbosity),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        // The layer would panic if standard error cannot be written.
        .log_internal_errors(false);
    // The first call in the process cannot fail.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init();
}

fn by_verbosity(verbosity: u8) -> Targets {
    Targets::new().with_default(match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    })
}
