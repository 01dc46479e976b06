//! Drives the engine on the machine's KVM with a busy stock guest and prints a JSON object a line. As pid 1 of a rig's Linux, the program
//! reads the arguments from a file and powers the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use hyprobe_rigs::busy::{Busy, BusyError, Cycles, Heat, Soak};
use hyprobe_rigs::init;
use hyprobe_rigs::line::Backend;

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
    /// Only cases with the given text in the name, or with one of several texts, separated by commas.
    #[arg(long, default_value = "")]
    only: String,
    /// vCPUs of the guest.
    #[arg(long, default_value_t = 2)]
    cpus: u8,
    /// With `program`: how often a probe comes and goes.
    #[arg(long, default_value_t = 200)]
    cycles: u32,
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
    init::main("busy", run)
}

fn run(arguments: Arguments) -> Result<usize, BusyError> {
    let busy = Busy {
        backend: arguments.backend,
        kernel: &arguments.kernel,
        initrd: &arguments.initrd,
        only: &arguments.only,
        cpus: arguments.cpus,
        cycles: Cycles {
            count: arguments.cycles,
        },
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
    busy.run(&mut std::io::stdout().lock())
}
