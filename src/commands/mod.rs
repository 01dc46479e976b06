//! The subcommands: each has a function that takes the arguments and returns the exit, and an error of its own.

mod check;
mod doctor;
mod execute;
mod fetch_debug_files;
mod images;
mod named_kernel;
mod named_sites;
mod package_files;
mod remote;
mod run;
mod symbols;
mod test;
mod types;

pub(crate) use execute::execute;
