//! The start of the programs. If a program is pid 1 of a rig's Linux, the program sets up the Linux, reads the arguments from a file, and
//! powers the machine off at the end.

use std::fs;
use std::io;
use std::process::ExitCode;

use clap::Parser;
use confine::FilterError;
use errors::chain;
use outer::init::{self, InitError};
use thiserror::Error;

/// The program's arguments, a JSON array of strings.
pub(crate) const ARGUMENTS_PATH: &str = "/rig/arguments.json";

/// With this console level, a dying kernel prints the cause of death, and nothing else breaks a line.
const CONSOLE_LEVEL: (&str, &str) = ("/proc/sys/kernel/printk", "1");

/// Why the program cannot begin as pid 1.
#[derive(Debug, Error)]
enum SetUpError {
    #[error(transparent)]
    Init(#[from] InitError),
    #[error("cannot write {} in the outer Linux", CONSOLE_LEVEL.0)]
    Console(#[source] io::Error),
    #[error("cannot filter the guests' threads in the outer Linux")]
    Filters(#[from] FilterError),
    #[error("cannot read {ARGUMENTS_PATH} in the outer Linux")]
    Arguments(#[source] io::Error),
    #[error("cannot understand {ARGUMENTS_PATH} in the outer Linux")]
    Json(#[from] serde_json::Error),
}

/// Runs the program `name`: parses the arguments, and calls `run`, which returns the number of failed cases.
pub fn main<A: Parser, E: std::error::Error>(
    name: &str,
    run: impl FnOnce(A) -> Result<usize, E>,
) -> ExitCode {
    let run = |arguments| match run(arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{name}: {}", chain(error));
            ExitCode::from(2)
        }
    };
    if !init::is_pid_1_with(ARGUMENTS_PATH) {
        return run(A::parse());
    }
    match set_up().map(A::try_parse_from) {
        Ok(Ok(arguments)) => {
            run(arguments);
        }
        Ok(Err(error)) => eprintln!("{name}: {error}"),
        Err(error) => eprintln!("{name}: {}", chain(error)),
    }
    init::power_off();
}

/// Prepares the outer Linux for the program, and reads the arguments.
fn set_up() -> Result<Vec<String>, SetUpError> {
    init::set_up()?;
    let (path, level) = CONSOLE_LEVEL;
    fs::write(path, level).map_err(SetUpError::Console)?;
    // The guests' threads work behind their filters, as they do in the command.
    confine::load_filters()?;
    let arguments = fs::read(ARGUMENTS_PATH).map_err(SetUpError::Arguments)?;
    Ok(serde_json::from_slice(&arguments)?)
}
