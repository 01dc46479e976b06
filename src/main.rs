//! The `hyprobe` command.

mod cli;
mod config;
mod exit;
mod session;
mod stop;

fn main() {}
