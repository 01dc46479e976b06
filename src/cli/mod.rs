//! The command line.
//!
//! The arguments are plain data. `account` and `matrix` parse the arguments with a syntax of their own.

mod account;
mod command;
mod matrix;
mod remote;
mod run;
mod test;
mod values;

pub(crate) use account::Account;
pub(crate) use command::{
    CheckArgs, Cli, Command, DoctorArgs, ImagesCommand, PackageFilesArgs, SymbolsArgs, TypesArgs,
};
pub(crate) use matrix::{Setting, Shard, combinations};
pub(crate) use remote::{
    AddArgs, BtArgs, CtlArgs, CtlVerb, DumpArgs, EventsArgs, IdArgs, KernelArgs, PerCpuArgs,
    PrintArgs, ProbeCommand, PsArgs, SocketArgs, TopArgs, ViewArgs,
};
pub(crate) use run::{IdentityArgs, RunArgs};
pub(crate) use test::TestArgs;
