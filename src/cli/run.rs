//! The arguments of a run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use manifest::units;

use super::account::Account;
use super::values::{choice, cpus, parse_console};
use crate::config::{Accel, Boot, Console, Format, Stealth, TrapChoice, WhenFull, Workload};

/// The guest and the probes. Options override the manifest; probes are added to the manifest's probes.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
With --console stdio the console and the events share standard output, each event on a line of its own; \
with --format json, standard output is for the events alone and the console goes to standard error.

Probes:
  kprobe:SYMBOL[+OFFSET]   kprobe:vfs_read  kprobe:vfs_read+0x5
  kprobe:PATTERN           kprobe:vfs_*     every function that matches
  kprobe:0xADDRESS         kprobe:0xffffffff81234567
  kprobe:MODULE:SYMBOL     kprobe:nf_tables:nft_do_chain   also with an offset, a pattern, a line or inlined copies
  kprobe:FILE:LINE         kprobe:fs/read_write.c:451   every place of a source line; needs debug information
  kprobe:FUNCTION:inlined  kprobe:rw_verify_area:inlined   every inlined copy; needs debug information
  kretprobe:…              the return of a function
  syscall:NAME             syscall:openat   syscall:*   a system call, with its arguments
  retsyscall:NAME          the return of a system call
  tracepoint:GROUP:NAME    tracepoint:sched:sched_switch")]
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
    /// Debug information, for source lines (repeatable): a vmlinux with DWARF, and for modules NAME.ko or NAME.ko.debug [default: if a probe needs
    /// one, the file of the kernel's build-id under /usr/lib/debug, or of a server in DEBUGINFOD_URLS; for modules, those under /usr/lib/debug]
    #[arg(long, value_name = "FILE", help_heading = "Probes")]
    pub(crate) debug_info: Vec<PathBuf>,
    /// Show the kernel's stack at the hits and returns of the probes of -p
    #[arg(long, requires = "probes", help_heading = "Probes")]
    pub(crate) stack: bool,
    /// What to plant where a probe is
    #[arg(long, hide = true, value_parser = choice::<TrapChoice>())]
    pub(crate) trap: Option<TrapChoice>,
    /// Every hit exits: no jump stands for a plant
    #[arg(long, help_heading = "Probes")]
    pub(crate) no_optimise: bool,
    /// What a hit does when there is no room to record it [default: exit]
    #[arg(long, value_name = "HOW", value_parser = choice::<WhenFull>(), help_heading = "Probes")]
    pub(crate) when_full: Option<WhenFull>,
    /// Which of the guest's reads of probed kernel code find the guest's own bytes [default: writes]
    #[arg(long, value_name = "LEVEL", value_parser = choice::<Stealth>(), help_heading = "Probes")]
    pub(crate) stealth: Option<Stealth>,
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
    /// Listen on this Unix socket for `hyprobe probe`, `events`, `top`, `dump` and `ctl`
    #[arg(long, value_name = "SOCKET", help_heading = "Run")]
    pub(crate) control: Option<PathBuf>,
    /// How events are written [default: text]
    #[arg(long, value_parser = choice::<Format>(), help_heading = "Output")]
    pub(crate) format: Option<Format>,
    /// Write events to this file instead of standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// If the guest crashes, write its memory and registers to this core file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) dump_on_crash: Option<PathBuf>,
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
