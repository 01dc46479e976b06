//! The arguments of `hyprobe test`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use manifest::units;

use super::matrix::{Axis, Shard};
use super::run::IdentityArgs;
use super::values::choice;
use crate::config::Accel;

/// Which manifests, and how.
#[derive(Debug, Args)]
#[command(after_help = "\
Each manifest is a case; with --matrix, each of its combinations. Without [[expect]], a guest passes that ends without \
a crash and in time. Exit code 1 if any case failed.")]
pub(crate) struct TestArgs {
    /// Manifests, and folders with manifests (*.toml)
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Boot every combination: kernel=debian-6.1,./vmlinuz cpus=1,2 (also memory, boot, cmdline)
    #[arg(long, value_name = "KEY=A,B", num_args = 1.., value_parser = clap::value_parser!(Axis), help_heading = "Cases")]
    pub(crate) matrix: Vec<Axis>,
    /// Run one of N parts of the cases: 1/N to N/N
    #[arg(long, value_name = "I/N", value_parser = clap::value_parser!(Shard), help_heading = "Cases")]
    pub(crate) shard: Option<Shard>,
    /// Debug information of the kernel and of modules, as for `run` (repeatable): source lines in artifacts and in the summary, also without a probe that needs it. A
    /// case with another kernel ends with an error
    #[arg(long, value_name = "FILE", help_heading = "Cases")]
    pub(crate) debug_info: Vec<PathBuf>,
    /// Boot a failed case again, at most this many times; the case passes if a boot passes
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Run")]
    pub(crate) retries: u32,
    /// The maximum number of concurrent guests [default: as processors and memory allow]
    #[arg(short, long, value_name = "N", help_heading = "Run")]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Where guests run [default: auto]
    #[arg(long, value_name = "WHERE", value_parser = choice::<Accel>(), help_heading = "Run")]
    pub(crate) accel: Option<Accel>,
    /// End each guest after this time [default: the manifest's, or 300s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Run")]
    pub(crate) timeout: Option<Duration>,
    /// Keep all rights of the user: no Landlock rules, no filters of system calls
    #[arg(long, help_heading = "Run")]
    pub(crate) no_sandbox: bool,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    /// Write the results as JUnit XML
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) junit: Option<PathBuf>,
    /// One JSON object a case on standard output
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Where consoles, events and crashes of cases that fail are kept
    #[arg(
        long,
        value_name = "DIR",
        default_value = "hyprobe-artifacts",
        help_heading = "Output"
    )]
    pub(crate) artifacts: PathBuf,
    /// Keep the memory and the registers of guests that crash, too: a core file `vmcore`, about as large as the memory in use
    #[arg(long, help_heading = "Output")]
    pub(crate) dump_on_crash: bool,
}
