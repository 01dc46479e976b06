//! `hostile --seed N --seconds N`: hostile guests against `hyprobe run`: see [`hyprobe_rigs::hostile`].

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use errors::chain;
use hyprobe_rigs::hostile::{Campaign, HostileError, Totals};
use hyprobe_rigs::line::Backend;

/// Boots hostile guests, one after the other, while probes come and go, and judges each end.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where: `local`, the test guest on this machine's KVM; `nested`, a stock kernel in QEMU; both, with equal shares of the
    /// time, if nothing is said.
    #[arg(long, value_parser = backend)]
    on: Option<Backend>,
    /// The first boot's seed; the next boot has the next number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// No boot begins after this time. From 600 on, the boots must have tried every act.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// The maximum number of boots: `--on nested --seed 17 --boots 1` repeats a boot.
    #[arg(long, default_value_t = u64::MAX)]
    boots: u64,
    /// The command `hyprobe`; by default, the file beside this program.
    #[arg(long)]
    hyprobe: Option<PathBuf>,
    /// The directory of the guests, and of the files of failed boots.
    #[arg(long, default_value = "target/rigs/hostile")]
    results: PathBuf,
}

impl Arguments {
    /// Whether the campaign has time for every act.
    fn is_for_time(&self) -> bool {
        self.boots == u64::MAX && self.seconds >= 600
    }
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word)
        .filter(|backend| matches!(backend, Backend::Local | Backend::Nested))
        .ok_or_else(|| "local or nested".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(totals) => {
            print!("{totals}");
            let missing = match arguments.is_for_time() {
                true => totals.shortcomings(),
                false => Vec::new(),
            };
            for what in &missing {
                println!("NOT TRIED: {what}");
            }
            let is_bad = totals.failed > 0 || totals.boots == 0 || !missing.is_empty();
            ExitCode::from(u8::from(is_bad))
        }
        Err(error) => {
            eprintln!("hostile: error: {}", chain(error));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<Totals, HostileError> {
    let beside = || std::env::current_exe().map(|own| own.with_file_name("hyprobe"));
    let hyprobe = match &arguments.hyprobe {
        Some(path) => Ok(path.clone()),
        None => beside(),
    };
    let absolute = |path: std::io::Result<PathBuf>| {
        path.and_then(std::path::absolute)
            .map_err(HostileError::Paths)
    };
    let both = [Backend::Local, Backend::Nested];
    let one = arguments.on.as_slice();
    std::fs::create_dir_all(&arguments.results).map_err(HostileError::Paths)?;
    let store = guest_images::Store::open()?;
    let campaign = Campaign {
        backends: if one.is_empty() { &both } else { one },
        seed: arguments.seed,
        limit: Duration::from_secs(arguments.seconds),
        boots: arguments.boots,
        hyprobe: &absolute(hyprobe)?,
        results: &absolute(Ok(arguments.results.clone()))?,
        cache: store.root(),
    };
    campaign.run(&|line| println!("{line}"))
}
