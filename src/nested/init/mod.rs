//! Inside: pid 1 of the outer Linux.
//!
//! [`outer::init`] prepares the Linux that the kernel has started, `ports` opens the ports, `events` and `clients` write to the ports, and `pid1`
//! puts all of them around a run. `stuck` lists the threads of a run that does not end. A failure is reported on the control port, or on
//! the serial line before the control port is open; then the machine powers off.

mod clients;
mod counted;
mod events;
mod pid1;
mod ports;
mod stuck;

pub use pid1::{is_pid_1_of_an_outer_linux, run_as_pid_1};
