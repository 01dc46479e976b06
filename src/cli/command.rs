//! The subcommands, and the arguments of those that need few.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::remote::{
    BtArgs, CtlArgs, DumpArgs, EventsArgs, PerCpuArgs, PrintArgs, ProbeCommand, PsArgs, TopArgs,
    ViewArgs,
};
use super::run::RunArgs;
use super::test::TestArgs;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  an expectation failed; for `check`: a probe would not be armed; for `symbols` and `types`: there is none
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
    /// Say more: events in text have registers; standard error has a log of what is done, with `-vv` and `-vvv` details;
    /// `RUST_LOG` chooses by module
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
    /// List the tasks of a run's guest or of a dump, from the memory of the kernel
    Ps(PsArgs),
    /// Print kernel stacks of a run's guest or of a dump: of vCPUs, or of tasks, also sleeping ones
    Bt(BtArgs),
    /// List the modules of a run's guest or of a dump, as `lsmod` in the guest does
    Lsmod(ViewArgs),
    /// Print the log of a run's guest or of a dump, as `dmesg` in the guest does
    Dmesg(ViewArgs),
    /// List per-CPU variables of a run's guest or of a dump: for each processor the address, and the value of a number or pointer
    Percpu(PerCpuArgs),
    /// Pause, resume and stop the guest of a run that goes on
    Ctl(CtlArgs),
    /// Write the memory and the registers of the guest of a run that goes on to an ELF core file
    Dump(DumpArgs),
    /// Say what this host can do, and what hyprobe will therefore use
    Doctor(DoctorArgs),
    /// Find symbols of a kernel, also of a stock one that has no symbol table
    Symbols(SymbolsArgs),
    /// Show a type of a kernel in C, with the offsets and sizes of its members
    Types(TypesArgs),
    /// Evaluate an expression in C on the memory of a run that goes on or of a dump
    Print(PrintArgs),
    /// List and fetch stock guest kernels
    #[command(subcommand)]
    Images(ImagesCommand),
    /// Write the man pages and the shell completions of this command, for packages
    #[command(hide = true)]
    PackageFiles(PackageFilesArgs),
    /// Fetch debug files of modules for another hyprobe, which is confined; the requests come on standard input
    #[command(hide = true)]
    FetchDebugFiles,
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
    /// Debug information of the kernel and of modules, as for `run` (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub(crate) debug_info: Vec<PathBuf>,
    /// One JSON object a probe; with --all, one a function and one of the totals
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Say, too, which levels of `--stealth` this host has, and what a guest finds at each that looks for probes
    #[arg(long)]
    pub(crate) stealth: bool,
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
    /// The names to show: a name or a glob, as in `kprobe:PATTERN`; or `syscall:PATTERN` and `tracepoint:GROUP:PATTERN`, with the arguments
    pub(crate) pattern: String,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TypesArgs {
    /// The kernel: a stock bzImage or an ELF vmlinux
    #[arg(long, value_name = "FILE", group = "which")]
    pub(crate) kernel: Option<PathBuf>,
    /// A stock kernel by name, fetched if need be
    #[arg(long, value_name = "NAME", group = "which")]
    pub(crate) image: Option<String>,
    /// The kernel in a core file of `hyprobe dump FILE`
    #[arg(long, value_name = "FILE", group = "which")]
    pub(crate) dump: Option<PathBuf>,
    /// The kernel of a run that goes on: the socket of `hyprobe run --control SOCKET`
    #[arg(
        long,
        value_name = "SOCKET",
        env = "HYPROBE_SOCKET",
        required_unless_present = "which"
    )]
    pub(crate) socket: Option<PathBuf>,
    /// The type or function to show: 'struct file', file, pid_t, vfs_read
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// One JSON object
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory as _;

    use super::*;
    use crate::config::{Boot, Console};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn view_needs_a_socket_or_a_dump() {
        let parse = |words: &[&str]| {
            let words = ["hyprobe", "ps"].iter().chain(words);
            Cli::try_parse_from(words).map_err(|error| error.kind())
        };
        for given in ["--socket", "--dump"] {
            assert!(parse(&[given, "file"]).is_ok());
        }
        assert!(std::env::var_os("HYPROBE_SOCKET").is_some() || parse(&[]).is_err());
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
