//! Drives the engine on the machine's KVM with a busy stock guest and prints a JSON object a line. As pid 1 of a rig's Linux, the program
//! reads the arguments from a file and powers the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use errors::chain;
use hyprobe_rigs::busy::{Busy, Heat, Soak};
use hyprobe_rigs::line::Backend;
use hyprobe_rigs::outer;

/// Drives the engine with a busy stock guest.
#[derive(Debug, Parser)]
struct Arguments {
    /// The kind of KVM, for the lines.
    #[arg(long, default_value = "local", value_parser = backend)]
    backend: Backend,
    /// The guest's kernel.
    #[arg(long)]
    kernel: PathBuf,
    /// The guest's initramfs, with the workload as init.
    #[arg(long)]
    initrd: PathBuf,
    /// Only cases with the given text in the name.
    #[arg(long, default_value = "")]
    only: String,
    /// vCPUs of the guest.
    #[arg(long, default_value_t = 2)]
    cpus: u8,
    /// Seconds of registering, switching and removing probes.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// The seed of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// With `soak`: the number of temporary probes at which no more are registered.
    #[arg(long, default_value_t = 5000)]
    most: usize,
    /// With `hot`: the maximum number of turns, for a machine with an emulated clock.
    #[arg(long, default_value_t = usize::MAX)]
    turns: usize,
    /// With `hot`: the maximum number of hot functions.
    #[arg(long, default_value_t = 400)]
    hottest: usize,
    /// With `soak`: jumps replace plants of probes that only count, where possible.
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
