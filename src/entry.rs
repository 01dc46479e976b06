//! The entry of the process: with a command line, or as pid 1 of an outer Linux.

use std::panic::catch_unwind;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::failure::in_one_line;
use crate::nested::InnerFailure;
use crate::run::crash_dump::CrashDump;
use crate::run::ends::{Console, Ends};
use crate::run::session;
use crate::{commands, logging, nested, panics, stderr};

/// Executes the command line of this process, or the run of a nested launcher, and returns the exit code.
pub fn main() -> ExitCode {
    panics::note_all();
    if nested::is_pid_1_of_an_outer_linux() {
        // Standard error is the launcher's.
        logging::start(0);
        nested::run_as_pid_1(|config, sink, console, stop, clients, dump| {
            let ends = Ends {
                sink,
                console: Console(console),
                stop,
                clients,
                dump: dump.map(CrashDump::Frames),
            };
            session::run_here(config, ends)
                .map_err(|error| InnerFailure::new(error.exit() as u8, &error))
        });
    }
    let cli = Cli::parse();
    if let Err(error) = confine::begin() {
        stderr::say(format_args!("error: {}", in_one_line(&error)));
        return Exit::HostCannot.into();
    }
    logging::start(cli.verbose);
    // The panic has been printed.
    let exit = catch_unwind(|| commands::execute(&cli)).unwrap_or(Exit::HostCannot);
    exit.into()
}
