//! From the command line to the subcommand.

use super::{
    check, doctor, fetch_debug_files, images, package_files, remote, run, symbols, test, types,
};
use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::failure;

/// Executes the subcommand, and prints the error, if any.
pub(crate) fn execute(cli: &Cli) -> Exit {
    let registers = cli.verbose > 0;
    let done = match &cli.command {
        Command::Run(args) => run::run(args, registers).map_err(boxed),
        Command::Test(args) => test::test(args).map_err(boxed),
        Command::Check(args) => check::check(args).map_err(boxed),
        Command::Probe(command) => remote::probe(command).map_err(boxed),
        Command::Events(args) => remote::events(args, registers).map_err(boxed),
        Command::Top(args) => remote::top(args).map_err(boxed),
        Command::Ps(args) => remote::ps(args).map_err(boxed),
        Command::Bt(args) => remote::bt(args).map_err(boxed),
        Command::Lsmod(args) => remote::lsmod(args).map_err(boxed),
        Command::Dmesg(args) => remote::dmesg(args).map_err(boxed),
        Command::Percpu(args) => remote::percpu(args).map_err(boxed),
        Command::Ctl(args) => remote::ctl(args).map_err(boxed),
        Command::Dump(args) => remote::dump(args).map_err(boxed),
        Command::Doctor(args) => doctor::doctor(args).map_err(boxed),
        Command::Symbols(args) => symbols::symbols(args).map_err(boxed),
        Command::Types(args) => types::types(args).map_err(boxed),
        Command::Print(args) => remote::print(args).map_err(boxed),
        Command::Images(command) => images::images(command).map_err(boxed),
        Command::PackageFiles(args) => package_files::write(args).map_err(boxed),
        Command::FetchDebugFiles => fetch_debug_files::serve().map_err(boxed),
    };
    done.unwrap_or_else(|failure| {
        failure::print(failure.as_ref());
        failure.exit()
    })
}

fn boxed(failure: impl Failure + 'static) -> Box<dyn Failure> {
    Box::new(failure)
}
