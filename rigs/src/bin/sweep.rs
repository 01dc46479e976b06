//! Probes every function of a stock guest on the machine's KVM, boot after boot, and prints a JSON object a line. As pid 1 of a rig's
//! Linux, the program reads the arguments from a file and powers the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use hyprobe_rigs::init;
use hyprobe_rigs::line::Backend;
use hyprobe_rigs::sweep::{Mode, Sweep, SweepError};

/// Probes every function of a stock guest.
#[derive(Debug, Parser)]
struct Arguments {
    /// Named in the lines.
    #[arg(long, default_value = "local", value_parser = backend)]
    backend: Backend,
    /// The guest's kernel, unpacked.
    #[arg(long)]
    kernel: PathBuf,
    /// The guest's packed kernel.
    #[arg(long)]
    packed: Option<PathBuf>,
    /// The guest's initramfs, with the workload as init.
    #[arg(long)]
    initrd: PathBuf,
    /// The lines of earlier launches.
    #[arg(long)]
    known: Option<PathBuf>,
    /// How the functions are probed.
    #[arg(long)]
    mode: Mode,
    /// vCPUs of the guest; the mode's own without.
    #[arg(long)]
    cpus: Option<u8>,
    /// Shuffles the functions, and chooses instructions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The hash of the sweep program, for the lines: only the same program continues a sweep.
    #[arg(long, default_value = "")]
    program: String,
    /// Functions of a batch, at most.
    #[arg(long, default_value_t = 5000)]
    batch: usize,
    /// The number of functions to sweep instead of all.
    #[arg(long)]
    sample: Option<usize>,
    /// Functions to sweep first, where the kernel has them.
    #[arg(long, value_delimiter = ',')]
    with: Vec<String>,
    /// No functions except the functions of `--with`.
    #[arg(long)]
    only_with: bool,
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word).ok_or_else(|| "one of intel, amd, nested, local".to_owned())
}

fn main() -> ExitCode {
    init::main("sweep", run)
}

fn run(arguments: Arguments) -> Result<usize, SweepError> {
    let sweep = Sweep {
        backend: arguments.backend,
        kernel: &arguments.kernel,
        packed: arguments.packed.as_deref(),
        initrd: &arguments.initrd,
        known: arguments.known.as_deref(),
        mode: arguments.mode,
        cpus: arguments.cpus,
        seed: arguments.seed,
        program: &arguments.program,
        batch: arguments.batch,
        sample: arguments.sample,
        with: &arguments.with,
        only_with: arguments.only_with,
    };
    sweep.run(&mut std::io::stdout().lock())
}
