//! The `hyprobe` command.

mod check;
mod cli;
mod config;
mod doctor;
mod exit;
mod failure;
mod guest;
mod images;
mod judged;
mod merge;
mod nested;
mod place;
mod remote;
mod report;
mod run;
mod session;
mod signals;
mod stop;
mod symbols;
mod test;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::exit::Failure;
use crate::failure::in_one_line;
use crate::nested::InnerFailure;

fn main() -> ExitCode {
    if nested::is_pid_1_of_an_outer_linux() {
        nested::run_as_pid_1(|config, sink, console, stop, control| {
            session::run_here(config, sink, console, stop, control)
                .map_err(|error| InnerFailure::new(error.exit() as u8, &error))
        });
    }
    let cli = Cli::parse();
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
        Command::Images(command) => images::images(command).map_err(boxed),
    };
    done.unwrap_or_else(|failure| {
        failure::print(failure.as_ref());
        failure.exit()
    })
    .into()
}

fn boxed(failure: impl Failure + 'static) -> Box<dyn Failure> {
    Box::new(failure)
}
