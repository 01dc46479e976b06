//! `hyprobe ctl`.

use std::io::{self, Write as _};

use control::api::Machine;

use super::connect::connect;
use super::error::RemoteError;
use super::words::{self, time};
use crate::cli::{CtlArgs, CtlVerb};
use crate::exit::Exit;

/// Executes the verb on the machine, and prints the machine's state afterwards.
pub(crate) fn ctl(args: &CtlArgs) -> Result<Exit, RemoteError> {
    let client = connect(&args.run)?;
    let machine = match args.verb {
        CtlVerb::Status => client.machine()?,
        CtlVerb::Pause => client.command("pause")?,
        CtlVerb::Resume => client.command("resume")?,
        CtlVerb::Stop => client.command("stop")?,
    };
    io::stdout().write_all(text(&machine).as_bytes())?;
    Ok(Exit::Done)
}

fn text(machine: &Machine) -> String {
    let state = words::machine(machine.state);
    let pauses = &machine.pauses;
    let mut text = format!(
        "{state} for {}.{:03} s ({}, {} vCPUs, {} MiB)\n{} probes, {} hits\n",
        machine.ts_ns / 1_000_000_000,
        machine.ts_ns / 1_000_000 % 1000,
        machine.accel,
        machine.cpus,
        machine.memory_bytes >> 20,
        machine.probes,
        machine.hits,
    );
    if pauses.count > 0 {
        text.push_str(&format!(
            "{} pauses for changes, together {}, the longest {}\n",
            pauses.count,
            time(pauses.held_total_ns),
            time(pauses.held_max_ns),
        ));
    }
    text
}
