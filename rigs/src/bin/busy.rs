//! Drives the engine on this machine's KVM with a busy stock guest and prints a JSON object a line. As pid 1 of a rig's
//! Linux it gets its arguments from a file and switches the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use hyprobe_rigs::busy::{Busy, Heat, Soak};
use hyprobe_rigs::chain::chain;
use hyprobe_rigs::line::Backend;
use hyprobe_rigs::outer;

/// Drives the engine with a busy stock guest.
#[derive(Debug, Parser)]
struct Arguments {
    /// What the lines say of where this is.
    #[arg(long, default_value = "local", value_parser = backend)]
    backend: Backend,
    /// The guest's kernel.
    #[arg(long)]
    kernel: PathBuf,
    /// Its initramfs, whose init is the workload.
    #[arg(long)]
    initrd: PathBuf,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// vCPUs of the guest.
    #[arg(long, default_value_t = 2)]
    cpus: u8,
    /// Seconds that probes come and go.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// What comes and goes when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// So many probes come and go at once.
    #[arg(long, default_value_t = 5000)]
    most: usize,
    /// With `hot`: so many turns at the most, where clocks say little.
    #[arg(long, default_value_t = usize::MAX)]
    turns: usize,
    /// With `hot`: so many of the hottest functions.
    #[arg(long, default_value_t = 400)]
    hottest: usize,
    /// With `soak`: jumps stand for probes that only count, where they can.
    #[arg(long)]
    optimise: bool,
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word).ok_or_else(|| "one of intel, amd, nested, local".to_owned())
}

fn main() -> ExitCode {
    if !outer::is_pid_1() {
        return run(Arguments::parse());
    }
    match outer::set_up() {
        Ok(arguments) => match Arguments::try_parse_from(arguments) {
            Ok(arguments) => {
                run(arguments);
            }
            Err(error) => eprintln!("busy: {error}"),
        },
        Err(error) => eprintln!("busy: {}", chain(error)),
    }
    outer::power_off();
}

fn run(arguments: Arguments) -> ExitCode {
    let busy = Busy {
        backend: arguments.backend,
        kernel: &arguments.kernel,
        initrd: &arguments.initrd,
        only: &arguments.only,
        cpus: arguments.cpus,
        soak: Soak {
            seconds: arguments.seconds,
            seed: arguments.seed,
            most: arguments.most,
            optimise: arguments.optimise,
        },
        heat: Heat {
            seconds: arguments.seconds,
            turns: arguments.turns,
            seed: arguments.seed,
            most: arguments.hottest,
        },
    };
    match busy.run(&mut std::io::stdout().lock()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("busy: {}", chain(error));
            ExitCode::from(2)
        }
    }
}
