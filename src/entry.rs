//! The entry of the process: with a command line, or as pid 1 of an outer Linux.

use std::panic::catch_unwind;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::failure::{self, in_one_line};
use crate::nested::InnerFailure;
use crate::{
    check, commands, doctor, logging, nested, package_files, panics, remote, run, session, stderr,
    symbols, test,
};

/// Executes the command line of this process, or the run of a nested launcher, and returns the exit code.
pub fn main() -> ExitCode {
    panics::note_all();
    if nested::is_pid_1_of_an_outer_linux() {
        // Standard error is the launcher's.
        logging::start(0);
        nested::run_as_pid_1(|config, sink, console, stop, control| {
            session::run_here(config, sink, console, stop, control)
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
    let exit = catch_unwind(|| command(&cli)).unwrap_or(Exit::HostCannot);
    exit.into()
}

fn command(cli: &Cli) -> Exit {
    let done = match &cli.command {
        Command::Run(args) => run::run(args).map_err(boxed),
        Command::Test(args) => test::test(args).map_err(boxed),
        Command::Check(args) => check::check(args).map_err(boxed),
        Command::Probe(command) => remote::probe(command).map_err(boxed),
        Command::Events(args) => remote::events(args).map_err(boxed),
        Command::Top(args) => remote::top(args).map_err(boxed),
        Command::Ctl(args) => remote::ctl(args).map_err(boxed),
        Command::Doctor(args) => doctor::doctor(args).map_err(boxed),
        Command::Symbols(args) => symbols::symbols(args).map_err(boxed),
        Command::Images(command) => commands::images::images(command).map_err(boxed),
        Command::PackageFiles(args) => package_files::write(args).map_err(boxed),
    };
    done.unwrap_or_else(|failure| {
        failure::print(failure.as_ref());
        failure.exit()
    })
}

fn boxed(failure: impl Failure + 'static) -> Box<dyn Failure> {
    Box::new(failure)
}
