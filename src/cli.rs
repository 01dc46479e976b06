//! The command line.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use manifest::{ProbeAction, Word, units};

use crate::config::{Accel, Boot, Console, Format, TrapChoice, WhenFull, Workload};
use crate::identity::Account;
use crate::test::{Axis, Shard};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  an expectation failed; for `check`: a probe would not be armed; for `symbols`: no symbol matches
  2  usage or manifest error
  3  this host cannot run it
  4  the guest crashed (panic, triple fault)
  5  timeout
  6  interrupted by a signal: nothing was judged";

/// Probes the kernel of an unmodified guest from outside: kprobes, one level down.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Log more to standard error: `-v` what is done, `-vv` and `-vvv` details; `RUST_LOG` chooses by module
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Boot a guest and show its probes' hits
    Run(RunArgs),
    /// Boot what manifests describe, and judge it by what they expect
    Test(TestArgs),
    /// Say what would become of a manifest's probes, or of one on every function, without booting anything
    Check(CheckArgs),
    /// Add, change and show probes of a run that goes on
    #[command(subcommand)]
    Probe(ProbeCommand),
    /// Show the events of a run that goes on, from now on
    Events(EventsArgs),
    /// Watch the probes of a run that goes on, those that fire most first
    Top(TopArgs),
    /// Pause, resume and stop the guest of a run that goes on
    Ctl(CtlArgs),
    /// Say what this host can do, and what hyprobe will therefore use
    Doctor(DoctorArgs),
    /// Find symbols of a kernel, also of a stock one that has no symbol table
    Symbols(SymbolsArgs),
    /// List and fetch stock guest kernels
    #[command(subcommand)]
    Images(ImagesCommand),
    /// Write the man pages and the shell completions of this command, for packages
    #[command(hide = true)]
    PackageFiles(PackageFilesArgs),
}

/// The guest and the probes. Options override the manifest; probes are added to the manifest's probes.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
With --console stdio the console and the events share standard output, each event on a line of its own; \
with --format json, standard output is for the events alone and the console goes to standard error.

Probes:
  kprobe:SYMBOL[+OFFSET]   kprobe:vfs_read  kprobe:vfs_read+0x5
  kprobe:PATTERN           kprobe:vfs_*     every function that matches
  kprobe:0xADDRESS         kprobe:0xffffffff81234567
  kprobe:MODULE:SYMBOL     kprobe:nf_tables:nft_do_chain")]
pub(crate) struct RunArgs {
    /// A run described in TOML
    pub(crate) manifest: Option<PathBuf>,
    /// The kernel: a stock bzImage or an ELF vmlinux
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub(crate) kernel: Option<PathBuf>,
    /// A stock kernel by name, fetched if need be (see `hyprobe images list`)
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "kernel",
        help_heading = "Guest"
    )]
    pub(crate) image: Option<String>,
    /// The guest's first file system
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub(crate) initrd: Option<PathBuf>,
    /// A built-in first file system; `demo` is the default with --image
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "initrd",
        value_parser = choice::<Workload>(),
        help_heading = "Guest"
    )]
    pub(crate) workload: Option<Workload>,
    /// The kernel's command line [default: console=ttyS0 panic=-1]
    #[arg(long, value_name = "TEXT", help_heading = "Guest")]
    pub(crate) cmdline: Option<String>,
    /// The guest's memory [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, help_heading = "Guest")]
    pub(crate) memory: Option<u64>,
    /// The number of vCPUs [default: 1]
    #[arg(long, value_name = "N", value_parser = cpus(), help_heading = "Guest")]
    pub(crate) cpus: Option<u8>,
    /// How the kernel is started [default: direct]
    #[arg(long, value_name = "HOW", value_parser = choice::<Boot>(), help_heading = "Guest")]
    pub(crate) boot: Option<Boot>,
    /// What to probe (repeatable)
    #[arg(short, long = "probe", value_name = "SPEC", help_heading = "Probes")]
    pub(crate) probes: Vec<String>,
    /// What to plant where a probe is
    #[arg(long, hide = true, value_parser = choice::<TrapChoice>())]
    pub(crate) trap: Option<TrapChoice>,
    /// Every hit exits: no jump stands for a plant
    #[arg(long, help_heading = "Probes")]
    pub(crate) no_optimise: bool,
    /// What a hit does when there is no room to record it [default: exit]
    #[arg(long, value_name = "HOW", value_parser = choice::<WhenFull>(), help_heading = "Probes")]
    pub(crate) when_full: Option<WhenFull>,
    /// Where the guest runs [default: auto]
    #[arg(long, value_name = "WHERE", value_parser = choice::<Accel>(), help_heading = "Run")]
    pub(crate) accel: Option<Accel>,
    /// End the guest after this time: 60s, 2m, 500ms
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Run")]
    pub(crate) timeout: Option<Duration>,
    /// Keep all rights of the user: no Landlock rules, no filters of system calls
    #[arg(long, help_heading = "Run")]
    pub(crate) no_sandbox: bool,
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    /// Listen on this Unix socket for `hyprobe probe`, `events`, `top` and `ctl`
    #[arg(long, value_name = "SOCKET", help_heading = "Run")]
    pub(crate) control: Option<PathBuf>,
    /// How events are written [default: text]
    #[arg(long, value_parser = choice::<Format>(), help_heading = "Output")]
    pub(crate) format: Option<Format>,
    /// Write events to this file instead of standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Where the guest's console goes: stdio, none or a file [default: stdio]
    #[arg(long, value_name = "WHERE", value_parser = parse_console, help_heading = "Output")]
    pub(crate) console: Option<Console>,
}

/// The user and the root directory that a hyprobe of root changes to, before a guest runs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct IdentityArgs {
    /// If root starts hyprobe: become this user, without capabilities, before a guest runs (on this host's KVM only)
    #[arg(long, value_name = "USER[:GROUP]", help_heading = "Run")]
    pub(crate) user: Option<Account>,
    /// Make this directory the root directory before the change of user (`hyprobe run` only)
    #[arg(long, value_name = "DIR", requires = "user", help_heading = "Run")]
    pub(crate) chroot: Option<PathBuf>,
}

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
}

/// Which manifest, and which kernel.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The manifest
    #[arg(required_unless_present = "all")]
    pub(crate) manifest: Option<PathBuf>,
    /// Say of every function of the kernel whether a probe on its entry can do without VM exits, or why not
    #[arg(long, conflicts_with = "manifest", requires = "which")]
    pub(crate) all: bool,
    /// The kernel in place of the manifest's: a stock bzImage or an ELF vmlinux
    #[arg(long, value_name = "FILE", group = "which")]
    pub(crate) kernel: Option<PathBuf>,
    /// A stock kernel in place of the manifest's, by name
    #[arg(long, value_name = "NAME", group = "which")]
    pub(crate) image: Option<String>,
    /// One JSON object a probe; with --all, one a function and one of the totals
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which run.
#[derive(Debug, Args)]
pub(crate) struct SocketArgs {
    /// The socket of `hyprobe run --control SOCKET`
    #[arg(long, value_name = "SOCKET", env = "HYPROBE_SOCKET")]
    pub(crate) socket: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProbeCommand {
    /// Add probes: all of them or none
    Add(AddArgs),
    /// Show all probes
    List {
        #[command(flatten)]
        run: SocketArgs,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove probes
    Rm {
        #[command(flatten)]
        run: SocketArgs,
        /// Numbers or names, as `list` shows them
        #[arg(required_unless_present = "all", value_name = "ID")]
        ids: Vec<String>,
        /// All probes
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Plant probes again
    Enable(IdArgs),
    /// Take the plants of probes away, and keep the probes
    Disable(IdArgs),
}

#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// Numbers or names, as `list` shows them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// What to probe, as with `run -p`
    #[arg(required = true, value_name = "SPEC")]
    pub(crate) specs: Vec<String>,
    /// A name for it, in place of its number
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Add it without planting it
    #[arg(long)]
    pub(crate) disabled: bool,
    /// For return probes: how many calls are followed at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) maxactive: Option<u16>,
    /// What is done at its hits [default: trace]
    #[arg(long, value_parser = choice::<ProbeAction>())]
    pub(crate) action: Option<ProbeAction>,
    /// Only executions for which this holds are hits: 'arg0 == 5 && cpu == 1'
    #[arg(long, value_name = "CONDITIONS")]
    pub(crate) filter: Option<String>,
    /// Keep a sum, min, max, hist or lhist of a value in place of events: 'hist(arg2)'
    #[arg(long, value_name = "OF", conflicts_with = "action")]
    pub(crate) aggregate: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// From this event on, if it is still kept; 1 is the run's first
    #[arg(long, value_name = "SEQ")]
    pub(crate) from: Option<u64>,
    /// End after this number of events
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// How events are written [default: text]
    #[arg(long, value_parser = choice::<Format>())]
    pub(crate) format: Option<Format>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// How often it is looked: 1s, 250ms
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "1s")]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// What to do
    pub(crate) verb: CtlVerb,
    #[command(flatten)]
    pub(crate) run: SocketArgs,
}

/// What can be done to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CtlVerb {
    /// Say how it is
    Status,
    /// Pause every vCPU
    Pause,
    /// Let it run on
    Resume,
    /// End the guest, and the run with it
    Stop,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SymbolsArgs {
    /// The kernel: a stock bzImage or an ELF vmlinux
    #[arg(long, value_name = "FILE", required_unless_present = "image")]
    pub(crate) kernel: Option<PathBuf>,
    /// A stock kernel by name, fetched if need be
    #[arg(long, value_name = "NAME", conflicts_with = "kernel")]
    pub(crate) image: Option<String>,
    /// The names to show: a name or a glob, as in `kprobe:PATTERN`
    pub(crate) pattern: String,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PackageFilesArgs {
    /// The directory for the files; it is created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImagesCommand {
    /// Show what can be fetched and what is here already
    List,
    /// Fetch images into the cache, through apt and without root
    Fetch {
        /// Names, as `list` shows them
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Look for newer packages of images that are here
        #[arg(long)]
        refresh: bool,
    },
}

/// One of several words.
fn choice<W: Word + Send + Sync>() -> impl TypedValueParser<Value = W> {
    let values = W::ALL
        .iter()
        .map(|choice| PossibleValue::new(choice.word()).help(choice.about()));
    PossibleValuesParser::new(values)
        .try_map(|word| W::from_word(&word).ok_or("not one of the words"))
}

fn cpus() -> impl TypedValueParser<Value = u8> {
    clap::value_parser!(u8).range(1..=i64::from(vmm::boot::MAX_VCPUS))
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a clap value parser")]
fn parse_console(text: &str) -> Result<Console, std::convert::Infallible> {
    Ok(Console::from_text(text, Path::new("")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_is_understood() {
        let cli = Cli::try_parse_from([
            "hyprobe",
            "run",
            "--kernel",
            "vmlinuz",
            "-p",
            "kprobe:a",
            "-p",
            "kprobe:b",
            "--memory",
            "1G",
            "--console",
            "none",
            "--timeout",
            "60s",
            "--boot",
            "bzimage",
        ])
        .expect("parse");
        let Command::Run(args) = cli.command else {
            panic!("{cli:?}")
        };
        assert_eq!(args.probes, ["kprobe:a", "kprobe:b"]);
        assert_eq!(
            (args.memory, args.console),
            (Some(1 << 30), Some(Console::None))
        );
        assert_eq!(
            (args.timeout, args.boot),
            (Some(Duration::from_secs(60)), Some(Boot::BzImage))
        );
    }
}
