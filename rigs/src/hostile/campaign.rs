//! Boot after boot, until the time is over.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guest_images::hostile::{Acts, TemplateError};
use guest_images::{
    BuildError, CacheError, CachedFileError, FetchError, InitramfsError, ModuleError,
};
use thiserror::Error;
use vmm::boot::KernelError;

use super::boot::{Boot, Booted};
use super::guest::HostileGuest;
use super::verdict::End;
use crate::launch::{LaunchError, file_error};
use crate::line::Backend;

/// The rig itself fails.
#[derive(Debug, Error)]
pub enum HostileError {
    /// A file cannot be replaced.
    #[error(transparent)]
    File(#[from] LaunchError),
    /// A guest does not compile.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The test guest cannot be read.
    #[error("the test guest is no ELF file")]
    Object(#[from] object::Error),
    /// The stock kernel cannot be fetched.
    #[error("cannot get the stock kernel")]
    Fetch(#[from] FetchError),
    /// A file of the cache has changed.
    #[error(transparent)]
    Cached(#[from] CachedFileError),
    /// The kernel cannot be unpacked.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel has no symbols.
    #[error("the stock kernel cannot be read")]
    Symbols(#[from] probes::KernelError),
    /// A module cannot be read.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// A module is malformed.
    #[error("cannot make a module for the stock kernel")]
    Template(#[from] TemplateError),
    /// The kernel has no module to copy the guest's module from.
    #[error("the stock kernel has no module `{0}`")]
    NoTemplate(&'static str),
    /// The kernel lacks a symbol.
    #[error("the stock kernel has no symbol `{0}`")]
    NoSymbol(&'static str),
    /// The initramfs cannot be built.
    #[error("cannot build the initramfs")]
    Initramfs(#[from] InitramfsError),
    /// The files of a boot cannot be listed.
    #[error("cannot list the files of a boot")]
    Snapshot(#[source] io::Error),
    /// A directory cannot be used.
    #[error("cannot use the directory of the results")]
    Paths(#[source] io::Error),
    /// There is no image cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// hyprobe could not be started.
    #[error("cannot start {}", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// hyprobe's end cannot be waited for.
    #[error("cannot wait for hyprobe")]
    Wait(#[source] io::Error),
}

/// The parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign<'a> {
    /// The backends. They take turns, so each has the same share of the time.
    pub backends: &'a [Backend],
    /// The first boot's seed; the next boot has the next number.
    pub seed: u64,
    /// No boot begins after this time.
    pub limit: Duration,
    /// The maximum number of boots.
    pub boots: u64,
    /// The command.
    pub hyprobe: &'a Path,
    /// The image cache.
    pub cache: &'a Path,
    /// The directory of the guests, and of the files of failed boots.
    pub results: &'a Path,
}

/// The results of all boots.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Ends, by backend.
    pub ends: BTreeMap<(&'static str, End), u64>,
    /// The number of boots.
    pub boots: u64,
    /// The number of failed boots.
    pub failed: u64,
    backends: BTreeMap<&'static str, Sums>,
    took: Duration,
}

/// The results of one backend's boots.
#[derive(Clone, Debug, Default)]
struct Sums {
    boots: u64,
    acts: Acts,
    /// Boots whose guest has printed no act.
    idle: u64,
    added: u64,
    removed: u64,
    requests: u64,
    refused: u64,
    exits: u64,
    slowest: Duration,
    hyprobe_kib: u64,
    qemu_kib: u64,
}

impl Sums {
    fn add(&mut self, booted: &Booted) {
        self.boots += 1;
        self.acts.add(&booted.acts);
        self.idle += u64::from(booted.acts.total() == 0);
        self.added += booted.added;
        self.removed += booted.removed;
        self.requests += booted.requests;
        self.refused += booted.refused;
        self.exits = self.exits.saturating_add(booted.exits);
        self.slowest = self.slowest.max(booted.slowest);
        self.hyprobe_kib = self.hyprobe_kib.max(booted.hyprobe_kib);
        self.qemu_kib = self.qemu_kib.max(booted.qemu_kib);
    }

    /// The acts and requests that no boot of this backend has made. The verdicts do not cover them.
    fn shortcomings(&self) -> Vec<String> {
        let never = |(name, count): (&&str, &u64)| {
            (*count == 0).then(|| format!("no guest has done `{name}`"))
        };
        let mut missing: Vec<String> = self.acts.0.iter().filter_map(never).collect();
        for (what, count) in [
            ("act", self.acts.total()),
            ("probe that was added", self.added),
            ("request that was answered", self.requests),
            ("exit for a probe", self.exits),
        ] {
            if count == 0 {
                missing.push(format!("there was no {what}"));
            }
        }
        if self.idle * 4 > self.boots {
            missing.push(format!(
                "{} of {} guests have not said that they have done anything",
                self.idle, self.boots
            ));
        }
        missing
    }
}

impl Totals {
    fn add(&mut self, backend: &'static str, booted: &Booted) {
        self.boots += 1;
        self.failed += u64::from(!booted.failures.is_empty());
        if let Some(end) = booted.end {
            *self.ends.entry((backend, end)).or_default() += 1;
        }
        self.backends.entry(backend).or_default().add(booted);
        self.took += booted.took;
    }

    /// The acts and requests that no boot has tried, by backend. A short campaign tries only some.
    #[must_use]
    pub fn shortcomings(&self) -> Vec<String> {
        let all = self.backends.iter();
        all.flat_map(|(backend, sums)| {
            let missing = sums.shortcomings().into_iter();
            missing.map(move |what| format!("{backend}: {what}"))
        })
        .collect()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.took.as_secs() / 60;
        writeln!(
            f,
            "{} boots in {minutes} min, {} failed",
            self.boots, self.failed
        )?;
        for ((backend, end), count) in &self.ends {
            writeln!(f, "  {backend}: {count} {end}")?;
        }
        for (backend, sums) in &self.backends {
            let acts = sums.acts.0.iter();
            let acts: Vec<_> = acts
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            writeln!(
                f,
                "{backend}: {} boots, {} of them without an act; acts: {}",
                sums.boots,
                sums.idle,
                acts.join(", ")
            )?;
            writeln!(
                f,
                "{backend}: probes: {} added, {} removed; {} requests answered, {} refused; {} exits for probes",
                sums.added, sums.removed, sums.requests, sums.refused, sums.exits
            )?;
            writeln!(
                f,
                "{backend}: slowest answer {:.1} s; memory at most: hyprobe {} MiB, QEMU {} MiB",
                sums.slowest.as_secs_f64(),
                sums.hyprobe_kib / 1024,
                sums.qemu_kib / 1024
            )?;
        }
        Ok(())
    }
}

impl Campaign<'_> {
    /// Runs the boots. `report` gets a line for each boot.
    ///
    /// # Errors
    ///
    /// If the rig itself fails. A failed boot is no error.
    pub fn run(&self, report: &dyn Fn(&str)) -> Result<Totals, HostileError> {
        let mut guests = Vec::new();
        for &backend in self.backends {
            let dir = self.results.join(format!("guest-{backend}"));
            std::fs::create_dir_all(&dir).map_err(file_error("create", &dir))?;
            guests.push((backend, HostileGuest::build(backend, &dir)?, Duration::ZERO));
        }
        let path = self.results.join("boots.txt");
        let mut lines = File::create(&path).map_err(file_error("create", &path))?;
        let (mut totals, began) = (Totals::default(), Instant::now());
        let mut seed = self.seed;
        while began.elapsed() < self.limit && totals.boots < self.boots {
            let Some((backend, guest, used)) = guests.iter_mut().min_by_key(|(_, _, used)| *used)
            else {
                break;
            };
            let dir = self.results.join("boot");
            let boot = Boot {
                backend: *backend,
                seed,
                guest,
                hyprobe: self.hyprobe,
                cache: self.cache,
                dir: &dir,
            };
            let booted = boot.run()?;
            *used += booted.took;
            totals.add(backend.word(), &booted);
            let line = line(*backend, seed, &booted);
            report(&line);
            writeln!(lines, "{line}").map_err(file_error("write", &path))?;
            if !booted.failures.is_empty() {
                let kept = self.results.join(format!("failed-{backend}-{seed}"));
                // The directory may have an earlier boot's files of the same seed.
                let _ = std::fs::remove_dir_all(&kept);
                std::fs::rename(&dir, &kept).map_err(file_error("rename", &kept))?;
            }
            seed += 1;
        }
        writeln!(lines, "{totals}").map_err(file_error("write", &path))?;
        Ok(totals)
    }
}

fn line(backend: Backend, seed: u64, booted: &Booted) -> String {
    let end = booted
        .end
        .map_or("FAILED".to_owned(), |end| end.to_string());
    let acts = booted.acts.total();
    let mut line = format!(
        "{backend} seed {seed}: {end} after {:.1} s, {acts} acts, {} probes added, {} removed, {} exits, slowest answer {} ms, \
         {} MiB",
        booted.took.as_secs_f64(),
        booted.added,
        booted.removed,
        booted.exits,
        booted.slowest.as_millis(),
        booted.hyprobe_kib / 1024
    );
    let failures = booted.failures.iter().map(|failure| ("FAILED", failure));
    for (word, text) in failures.chain(booted.why.iter().map(|why| ("why", why))) {
        line.push_str(&format!("\n  {word}: {text}"));
    }
    line
}
