//! Drives the engine on the machine's KVM with a stock guest that changes its own kernel under the probes, and prints a JSON object a
//! line. As pid 1 of a rig's Linux, the program reads the arguments from a file and powers the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use hyprobe_rigs::busy::BusyError;
use hyprobe_rigs::ground::Ground;
use hyprobe_rigs::init;
use hyprobe_rigs::line::Backend;

/// Drives the engine with a stock guest that changes its own kernel under the probes.
#[derive(Debug, Parser)]
struct Arguments {
    /// The kind of KVM, for the lines.
    #[arg(long, default_value = "local", value_parser = backend)]
    backend: Backend,
    /// The guest's kernel.
    #[arg(long)]
    kernel: PathBuf,
    /// The guest's initramfs, with `ground` as init.
    #[arg(long)]
    initrd: PathBuf,
    /// Only cases with the given text in the name, or with one of several texts, separated by commas.
    #[arg(long, default_value = "")]
    only: String,
    /// vCPUs of the guest.
    #[arg(long, default_value_t = 2)]
    cpus: u8,
    /// Every hit exits.
    #[arg(long)]
    no_optimise: bool,
    /// More for the guest's command line.
    #[arg(long, default_value = "")]
    parameters: String,
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word).ok_or_else(|| "one of intel, amd, nested, local".to_owned())
}

fn main() -> ExitCode {
    init::main("ground", run)
}

fn run(arguments: Arguments) -> Result<usize, BusyError> {
    let ground = Ground {
        backend: arguments.backend,
        kernel: &arguments.kernel,
        initrd: &arguments.initrd,
        only: &arguments.only,
        cpus: arguments.cpus,
        optimise: !arguments.no_optimise,
        parameters: &arguments.parameters,
    };
    ground.run(&mut std::io::stdout().lock())
}
