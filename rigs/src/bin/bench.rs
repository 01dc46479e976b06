//! Measures the cost of probes on the machine's KVM, and prints a JSON object a line. As pid 1 of a rig's Linux, the program reads the
//! arguments from a file and powers the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hyprobe_rigs::contract::ContractError;
use hyprobe_rigs::init;
use hyprobe_rigs::line::Backend;
use hyprobe_rigs::overhead::{Overhead, Stock};

/// Measures the cost of probes on the machine's KVM.
#[derive(Debug, Parser)]
struct Arguments {
    /// The kind of KVM, for the lines.
    #[arg(long, default_value = "local", value_parser = backend)]
    backend: Backend,
    /// The test guest, an ELF file.
    #[arg(long)]
    guest: PathBuf,
    /// A stock kernel to arm many probes in, and to run, unpacked.
    #[arg(long, requires = "initrd")]
    kernel: Option<PathBuf>,
    /// The stock kernel's initramfs.
    #[arg(long)]
    initrd: Option<PathBuf>,
    /// The packed stock kernel, to run in QEMU on the same machine.
    #[arg(long, requires = "kernel")]
    image: Option<PathBuf>,
    /// Only measurements with the given text in the name, or with one of several texts, separated by commas.
    #[arg(long, default_value = "")]
    only: String,
    /// Number of calls in a loop.
    #[arg(long, default_value_t = 500)]
    calls: u64,
    /// Number of loops; the page reports the median.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Seconds for each guest.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word).ok_or_else(|| "one of intel, amd, nested, local".to_owned())
}

fn main() -> ExitCode {
    init::main("bench", run)
}

fn run(arguments: Arguments) -> Result<usize, ContractError> {
    let stock = arguments.kernel.as_deref().zip(arguments.initrd.as_deref());
    let stock = stock.map(|(kernel, initrd)| Stock {
        kernel,
        initrd,
        image: arguments.image.as_deref(),
    });
    let overhead = Overhead {
        backend: arguments.backend,
        guest: &arguments.guest,
        stock,
        only: &arguments.only,
        calls: arguments.calls,
        rounds: arguments.rounds,
        timeout: Duration::from_secs(arguments.timeout),
    };
    overhead.run(&mut std::io::stdout().lock())
}
