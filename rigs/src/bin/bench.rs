//! Measures on this machine's KVM what probes cost, and prints a JSON object a line. As pid 1 of a rig's Linux it gets its
//! arguments from a file and switches the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hyprobe_rigs::chain::chain;
use hyprobe_rigs::line::Backend;
use hyprobe_rigs::outer;
use hyprobe_rigs::overhead::{Overhead, Stock};

/// Measures what probes cost on this machine's KVM.
#[derive(Debug, Parser)]
struct Arguments {
    /// What the lines say of where this is.
    #[arg(long, default_value = "local", value_parser = backend)]
    backend: Backend,
    /// The test guest, an ELF file.
    #[arg(long)]
    guest: PathBuf,
    /// A stock kernel to arm many probes in, and to run, unpacked.
    #[arg(long, requires = "initrd")]
    kernel: Option<PathBuf>,
    /// Its initramfs.
    #[arg(long)]
    initrd: Option<PathBuf>,
    /// The kernel as it is packed, to run in QEMU beside this.
    #[arg(long, requires = "kernel")]
    image: Option<PathBuf>,
    /// Only measurements whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Calls of one loop.
    #[arg(long, default_value_t = 500)]
    calls: u64,
    /// Number of loops, of which the median is told.
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
    if !outer::is_pid_1() {
        return run(&Arguments::parse());
    }
    match outer::set_up() {
        Ok(arguments) => match Arguments::try_parse_from(arguments) {
            Ok(arguments) => {
                run(&arguments);
            }
            Err(error) => eprintln!("bench: {error}"),
        },
        Err(error) => eprintln!("bench: {}", chain(error)),
    }
    outer::power_off();
}

fn run(arguments: &Arguments) -> ExitCode {
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
    match overhead.run(&mut std::io::stdout().lock()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {}", chain(error));
            ExitCode::from(2)
        }
    }
}
