//! What a run is: the command line and the manifest, merged and checked.
//!
//! A [`RunConfig`] has no defaults left to apply and no path that depends on the working directory. It goes through
//! JSON unchanged, because the nested launcher hands it to the hyprobe inside the outer Linux, with the paths replaced
//! by the places of the files there.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use probes::ProbeSpec;
use serde::{Deserialize, Serialize};

/// Everything that the engine needs to know, here or in the outer Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunConfig {
    /// The kernel: an ELF vmlinux or a bzImage.
    pub(crate) kernel: PathBuf,
    /// The guest's first file system.
    pub(crate) initrd: Initrd,
    /// The kernel's command line.
    pub(crate) cmdline: String,
    /// The guest's RAM.
    pub(crate) memory_bytes: u64,
    /// The number of vCPUs.
    pub(crate) cpus: u8,
    /// How the kernel is started.
    pub(crate) boot: Boot,
    /// What is probed, in the order in which it was asked for.
    pub(crate) probes: Vec<ProbeSpec>,
    /// Where the guest runs.
    pub(crate) accel: Accel,
    /// What is planted.
    pub(crate) trap: TrapChoice,
    /// Where the guest's serial console goes. The writer that belongs to it is opened by the process that the user
    /// started; this only says whether there is anybody to read and to type.
    pub(crate) console: Console,
    /// The guest is ended after this time, counted from its first instruction.
    pub(crate) timeout: Option<Duration>,
}

/// Where the guest's first file system comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Initrd {
    /// There is none.
    None,
    /// This file.
    File(PathBuf),
    /// The demo guest, built when it is needed.
    Demo,
}

/// How the kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Boot {
    /// hyprobe unpacks the kernel: fast, no KASLR
    #[default]
    Direct,
    /// The guest unpacks itself, with KASLR
    #[value(name = "bzimage")]
    #[serde(rename = "bzimage")]
    BzImage,
}

/// Where the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Accel {
    /// On /dev/kvm if it runs kernels at hardware speed, else nested
    #[default]
    Auto,
    /// On this host's /dev/kvm
    Kvm,
    /// In an outer Linux that QEMU emulates
    Nested,
}

/// What is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TrapChoice {
    /// What the self-test found to work
    #[default]
    Auto,
    /// A one-byte port write
    Port,
    /// A breakpoint instruction
    Int3,
}

/// Where the guest's serial console goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Console {
    /// To the terminal, which also types into it.
    #[default]
    Stdio,
    /// Nowhere.
    None,
    /// Into this file.
    File(PathBuf),
}

impl Console {
    /// What `--console` and the manifest say: `stdio`, `none`, or else a file; one called `none` is `./none`.
    pub(crate) fn from_word(word: &str) -> Self {
        match word {
            "stdio" => Self::Stdio,
            "none" => Self::None,
            file => Self::File(file.into()),
        }
    }
}

/// What only the process that the user started needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputConfig {
    /// How events are written.
    pub(crate) format: Format,
    /// Where to; standard output if nothing is said.
    pub(crate) output: Option<PathBuf>,
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}
