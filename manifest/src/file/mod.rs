//! Manifests: the description of a run in a file.
//!
//! ```toml
//! [guest]
//! kernel = "vmlinuz"            # or image = "debian-6.1", a stock kernel that is fetched
//! initrd = "initrd.gz"          # or workload = "demo", which is built in
//! modules = ["dummy"]           # of a stock kernel; the built-in workload loads them, and what they need
//! cmdline = "console=ttyS0"
//! memory = "256M"
//! cpus = 2
//! boot = "direct"               # or "bzimage"
//!
//! [run]
//! accel = "auto"                # or "kvm", "nested"
//! format = "text"               # or "json"
//! output = "events.jsonl"
//! console = "stdio"             # or "none", or a file
//! timeout = "60s"
//! control = "run.sock"          # listen there for `hyprobe probe`, `events`, `ctl`
//! optimise = false              # every hit exits; else jumps stand for plants, where they can
//! when_full = "drop"            # what there is no room to record is counted as missed; else it exits
//! stealth = "reads"             # no byte of the guest changes, and probed pages are slow; else "writes" or "registers"
//!
//! [[probe]]
//! at = "kprobe:do_sys_openat2"
//! filter = "arg0 == 0xffffff9c"   # only these executions are hits; see crate::program
//! action = "count"               # or aggregate = "hist(arg1)", or "trace", which is the default
//!
//! [[expect]]                    # one of console, probe, order, end
//! console = "login:"            # a regular expression; never = true turns it round
//! before = "30s"                # what happens later does not count
//!
//! [[expect]]
//! probe = "kprobe:panic"        # is added to the probes
//! never = true                  # or at_least, at_most, exactly = 3, never_negative = "int", seen = 5
//! stop = true                   # the run ends as soon as this cannot hold any more
//!
//! [[inject]]
//! at = "kmem_cache_alloc"       # returns at once
//! return = 0
//! on_hit = 1000                 # or every = 100
//! when = { comm = "mount" }     # only calls of this task are counted
//! ```
//!
//! Every key is optional, because the command line may give the value too. File names are relative to the manifest's folder. All problems
//! are reported at once, each with its position ([`InvalidManifest`] is a [`miette::Diagnostic`]).

mod error;
mod expect;
mod inject;
mod limits;
mod probe;
mod programs;
mod reader;
mod schema;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::{InvalidManifest, ManifestError, Problem};

use crate::choices::{Accel, Boot, Console, Format, Stealth, WhenFull, Workload};
use crate::{Expectation, Injection, ProbeConfig};

/// The contents of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The machine.
    pub guest: GuestSection,
    /// The run.
    pub run: RunSection,
    /// The probes, in the order of the file.
    pub probes: Vec<ProbeConfig>,
    /// The expectations, in the order of the file.
    pub expectations: Vec<Expectation>,
    /// The faults, in the order of the file.
    pub injections: Vec<Injection>,
}

/// `[guest]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestSection {
    /// `kernel` or `image`.
    pub kernel: Option<KernelSource>,
    /// `initrd` or `workload`.
    pub initrd: Option<InitrdSource>,
    /// Modules of a stock kernel that the built-in workload loads.
    pub modules: Vec<String>,
    /// The kernel's command line.
    pub cmdline: Option<String>,
    /// RAM.
    pub memory_bytes: Option<u64>,
    /// The number of vCPUs.
    pub cpus: Option<u8>,
    /// The way to start the kernel.
    pub boot: Option<Boot>,
}

/// The source of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelSource {
    /// This file.
    File(PathBuf),
    /// The name of a stock kernel.
    Image(String),
}

/// The source of the first file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitrdSource {
    /// This file.
    File(PathBuf),
    /// A file system that hyprobe builds.
    Workload(Workload),
}

/// `[run]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSection {
    /// The KVM that runs the guest.
    pub accel: Option<Accel>,
    /// The format of events.
    pub format: Option<Format>,
    /// The file for events.
    pub output: Option<PathBuf>,
    /// The destination of the guest's console.
    pub console: Option<Console>,
    /// The maximum run time of the guest.
    pub timeout: Option<Duration>,
    /// The socket through which the run can be controlled.
    pub control: Option<PathBuf>,
    /// Whether jumps may replace plants.
    pub optimise: Option<bool>,
    /// The effect of a hit if the ring has no room for its record.
    pub when_full: Option<WhenFull>,
    /// The guest's accesses to probed kernel code that find the guest's own bytes.
    pub stealth: Option<Stealth>,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not a regular file, has more than 16 MiB, or is not a valid manifest.
    pub fn load(path: &Path) -> Result<Self, ManifestError> {
        let bytes = files::read(path, limits::BYTES).map_err(|source| ManifestError::Read {
            path: path.to_owned(),
            source,
        })?;
        let text = str::from_utf8(&bytes).map_err(|source| ManifestError::NotText {
            path: path.to_owned(),
            source,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(Self::parse(text, &path.display().to_string(), folder)?)
    }

    /// Parses a manifest's text. Errors use `name`; file names are relative to `folder`.
    ///
    /// # Errors
    ///
    /// If the text is not a valid manifest.
    pub fn parse(text: &str, name: &str, folder: &Path) -> Result<Self, InvalidManifest> {
        schema::read(text, folder).map_err(|problems| InvalidManifest::new(name, text, problems))
    }
}

#[cfg(test)]
mod tests;
