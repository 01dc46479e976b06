//! Runs the cases on the machine's KVM and prints a JSON object a line. As pid 1 of a rig's Linux, the program reads the arguments from a
//! file and powers the machine off at the end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hyprobe_rigs::contract::{Contract, ContractError, StockFiles};
use hyprobe_rigs::init;
use hyprobe_rigs::line::Backend;

/// Runs the engine's cases on the machine's KVM.
#[derive(Debug, Parser)]
struct Arguments {
    /// The kind of KVM, for the lines.
    #[arg(long, default_value = "local", value_parser = backend)]
    backend: Backend,
    /// The test guest, an ELF file.
    #[arg(long)]
    guest: PathBuf,
    /// Only cases with the given text in the name, or with one of several texts, separated by commas.
    #[arg(long, default_value = "")]
    only: String,
    /// A kind of generated snippets to leave out, or a field to leave out of the comparison; may be given several times.
    #[arg(long)]
    without: Vec<String>,
    /// A stock kernel to boot, too.
    #[arg(long, requires = "stock_initrd")]
    stock_kernel: Option<PathBuf>,
    /// The stock kernel's initramfs: the workload.
    #[arg(long)]
    stock_initrd: Option<PathBuf>,
    /// vCPUs of the stock guest.
    #[arg(long, default_value_t = 1)]
    stock_cpus: u8,
    /// `PART=REASON`: cases with PART in the name cannot run here; may be given several times.
    #[arg(long, value_parser = cannot)]
    cannot: Vec<(String, String)>,
    /// Number of snippets in the cases called `generated`.
    #[arg(long, default_value_t = 2000)]
    generated: u64,
    /// The seed of the snippets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// More words for each command line of the test guest.
    #[arg(long, default_value = "")]
    guest_words: String,
    /// Seconds for each run of the test guest.
    #[arg(long, default_value_t = 100)]
    timeout: u64,
    /// Seconds for the stock guest.
    #[arg(long, default_value_t = 600)]
    stock_timeout: u64,
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word).ok_or_else(|| "one of intel, amd, nested, local".to_owned())
}

fn cannot(text: &str) -> Result<(String, String), String> {
    let (part, reason) = text.split_once('=').ok_or("PART=REASON")?;
    Ok((part.to_owned(), reason.to_owned()))
}

fn main() -> ExitCode {
    init::main("contract", run)
}

fn run(arguments: Arguments) -> Result<usize, ContractError> {
    let stock = arguments.stock_kernel.zip(arguments.stock_initrd);
    let stock = stock.map(|(kernel, initrd)| StockFiles {
        kernel,
        initrd,
        cpus: arguments.stock_cpus,
        timeout: Duration::from_secs(arguments.stock_timeout),
    });
    let contract = Contract {
        backend: arguments.backend,
        guest: &arguments.guest,
        stock: stock.as_ref(),
        only: &arguments.only,
        without: &arguments.without,
        cannot: &arguments.cannot,
        generated: arguments.generated,
        seed: arguments.seed,
        guest_words: &arguments.guest_words,
        timeout: Duration::from_secs(arguments.timeout),
    };
    contract.run(&mut std::io::stdout().lock())
}
