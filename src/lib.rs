//! The `hyprobe` command as a library, for the program and for the command's own tests and fuzz targets.
//!
//! The library is internal: other programs run the command. The hidden modules are public for the tests only, and change with the
//! command.
//!
//! ```text
//! entry ──▶ commands ──▶ run ──▶ nested
//!               │         │        │
//!               ├──▶ cli ◀┘        │
//!               └──▶ failure ◀─────┘
//!                      │
//!                      ▼
//!                    report ──▶ config, exit, stop, …
//! ```
//!
//! A module uses only modules below it.

mod cli;
mod commands;
#[doc(hidden)]
pub mod config;
mod entry;
mod exit;
mod failure;
mod kernel_input;
mod logging;
#[doc(hidden)]
pub mod nested;
mod outbox;
#[doc(hidden)]
pub mod panics;
#[doc(hidden)]
pub mod report;
mod run;
mod sandbox;
mod signals;
mod source_lines;
mod stderr;
#[doc(hidden)]
pub mod stop;

pub use entry::main;
