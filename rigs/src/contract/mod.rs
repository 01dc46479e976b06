//! Drives the engine on the machine's KVM, case by case, with the test guest and with a stock kernel.
//!
//! A [`Case`] tests a promise. The case runs the test guest, whose scenarios check themselves and count their calls, with probes from the
//! same process. The case panics if the guest or the probes report a wrong result. Each case runs with every byte that can be planted, or
//! with the engine's choice. [`FEATURES`] lists the promises and their cases.

mod bench;
mod boundaries;
mod case;
mod control;
mod counts;
mod detours;
mod features;
mod flow;
mod generated;
mod guest;
mod handlers;
mod live;
mod looks;
mod meddling;
mod observer;
mod optimised;
mod places;
mod raises;
mod registers;
mod returns;
mod stock;
mod text;
mod watch;
mod watch_reads;
mod watch_registers;

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use thiserror::Error;
use vmm::boot::KernelError;

use crate::line::Backend;
use crate::runner::{Runner, Verdict};

pub use bench::{Bench, Here};
pub(crate) use case::attempt;
pub use case::{Case, Plants, Variant};
pub use features::{FEATURES, Feature};
pub(crate) use guest::new as new_probe;
pub use guest::{Guest, MEMORY_BYTES, Prepared, Ran};
pub use observer::Observer;
pub(crate) use stock::MODULE as STOCK_MODULE;
pub use stock::StockFiles;

use stock::Stock;

/// An error that prevents all cases.
#[derive(Debug, Error)]
pub enum ContractError {
    /// No KVM.
    #[error(transparent)]
    Open(#[from] vmm::OpenError),
    /// KVM refuses a request that every KVM must accept.
    #[error(transparent)]
    SelfTest(#[from] vmm::SelfTestError),
    /// The test guest's file cannot be used.
    #[error(transparent)]
    File(#[from] KernelError),
    /// The test guest has no symbols.
    #[error(transparent)]
    Symbols(#[from] probes::KernelError),
    /// A line could not be printed.
    #[error("cannot print a line")]
    Print(#[from] io::Error),
}

/// The cases of the test guest, in the order in which they are run: the simplest first.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    const ALL: [&[Case]; 17] = [
        &counts::CASES,
        &places::CASES,
        &handlers::CASES,
        &raises::CASES,
        &detours::CASES,
        &optimised::CASES,
        &meddling::CASES,
        &returns::CASES,
        &text::CASES,
        &registers::CASES,
        &live::CASES,
        &boundaries::CASES,
        &control::CASES,
        &watch::CASES,
        &watch_reads::CASES,
        &watch_registers::CASES,
        &looks::CASES,
    ];
    ALL.into_iter().flatten()
}

/// The names of all cases, with the cases of the stock guest last.
pub fn names() -> impl Iterator<Item = &'static str> {
    let stock = stock::CASES.iter().map(|case| case.name);
    cases()
        .map(|case| case.name)
        .chain([generated::NAME])
        .chain(stock)
}

/// The names in the lines, in the order in which the cases are run. `stock_cpus` is the number of vCPUs of a stock guest.
pub(crate) fn line_names(stock_cpus: Option<u8>) -> Vec<String> {
    let variants = cases().flat_map(Case::variants);
    let stock = stock_cpus.into_iter().flat_map(|cpus| {
        let cases = stock::CASES.iter();
        cases.map(move |case| case.line_name(cpus))
    });
    variants
        .map(|variant| variant.name())
        .chain(generated::CASES.map(|case| case.name()))
        .chain(stock)
        .collect()
}

/// The cases to run.
#[derive(Clone, Copy, Debug)]
pub struct Contract<'a> {
    /// The kind of KVM, for the lines.
    pub backend: Backend,
    /// The test guest, an ELF file.
    pub guest: &'a Path,
    /// The stock guest, if the stock cases are to run.
    pub stock: Option<&'a StockFiles>,
    /// Only cases with this text in the name, or with one of several texts, separated by commas.
    pub only: &'a str,
    /// Kinds of generated snippets to leave out, and fields to leave out of the comparison.
    pub without: &'a [String],
    /// Cases with the first text in the name cannot run here; the second text is the reason.
    pub cannot: &'a [(String, String)],
    /// Number of snippets in the cases called `generated`.
    pub generated: u64,
    /// The seed of the snippets.
    pub seed: u64,
    /// More words for each command line of the test guest.
    pub guest_words: &'a str,
    /// No run of the test guest takes longer.
    pub timeout: Duration,
}

impl Contract<'_> {
    /// Runs the cases and prints a line for each. Returns how many failed.
    ///
    /// # Errors
    ///
    /// See [`ContractError`]; a failed case is not an error.
    pub fn run(&self, output: &mut dyn Write) -> Result<usize, ContractError> {
        let began = Instant::now();
        let bench = Bench::open(self.guest, self.timeout)?.with_words(self.guest_words);
        let mut runner = Runner::begin(self.backend, self.only, bench.facts(), began, output)?;
        for variant in cases().flat_map(Case::variants) {
            self.case(&mut runner, &variant.name(), || variant.attempt(&bench))?;
        }
        for case in generated::CASES {
            self.case(&mut runner, &case.name(), || case.run(&bench, self))?;
        }
        if let Some(files) = self.stock {
            self.run_stock(&bench, files, &mut runner)?;
        }
        Ok(runner.end()?)
    }

    /// Runs a case, unless the case is not selected or cannot run here.
    fn case(
        &self,
        runner: &mut Runner<'_>,
        name: &str,
        run: impl FnOnce() -> Verdict,
    ) -> io::Result<()> {
        let cannot = self.cannot.iter().find(|(part, _)| name.contains(part));
        runner.case(name, || match cannot {
            Some((_, reason)) => (None, reason.clone()),
            None => run(),
        })
    }

    fn run_stock(
        &self,
        bench: &Bench,
        files: &StockFiles,
        runner: &mut Runner<'_>,
    ) -> io::Result<()> {
        let facts = bench.facts();
        let stock = Stock::new(bench, files);
        for case in &stock::CASES {
            self.case(runner, &case.line_name(files.cpus), || {
                // The emulated clock of Bochs or QEMU does not show how long the guest takes.
                if self.backend == Backend::Local && !facts.runs_kernels() {
                    let speed = facts.speed.in_words();
                    return (None, format!("ring 0 is interpreted here: {speed}"));
                }
                match attempt(|| stock.check(case)) {
                    Ok(()) => (Some(true), stock.counted()),
                    Err(wrong) => match stock.fails_unprobed() {
                        Some(end) => (None, format!("the guest fails without probes too: {end}")),
                        None => (Some(false), wrong),
                    },
                }
            })?;
        }
        Ok(())
    }
}
