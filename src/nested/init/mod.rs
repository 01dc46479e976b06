//! Inside: what runs as pid 1 of the outer Linux.
//!
//! `system` makes a Linux of what the kernel started, `ports` finds the way out, `events` and `clients` use it,
//! `pid1` puts them around a run. Whatever fails is told on the control port, or, while there is none, on the serial
//! line; then the machine is switched off.

mod clients;
mod counted;
mod events;
mod pid1;
mod ports;
mod system;

pub(crate) use pid1::{is_pid_1_of_an_outer_linux, run_as_pid_1};
