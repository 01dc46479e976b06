//! The `hyprobe` command as a library, for the program and for the command's own tests and fuzz targets.
//!
//! The library is internal: other programs run the command. The hidden modules are public for the tests only, and change with the
//! command.

mod check;
mod cli;
mod commands;
#[doc(hidden)]
pub mod config;
mod doctor;
mod entry;
mod exit;
mod failure;
mod guest;
mod identity;
mod images;
mod judged;
mod kernel_input;
mod logging;
mod merge;
#[doc(hidden)]
pub mod nested;
mod outbox;
mod package_files;
#[doc(hidden)]
pub mod panics;
mod place;
mod remote;
#[doc(hidden)]
pub mod report;
mod run;
mod sandbox;
mod session;
mod signals;
mod stderr;
#[doc(hidden)]
pub mod stop;
mod symbols;
mod test;

pub use entry::main;
