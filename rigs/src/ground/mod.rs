//! The engine with a stock guest that changes its own kernel under the probes: processors and modules come and go, another kernel takes
//! over, the kernel traces and patches itself.
//!
//! Each case boots the guest twice, without probes and with probes on the code that makes the change. Both runs must agree in the guest's
//! end, reports and complaints. The probes on system calls must agree with the guest's counts, and each followed call must be accounted
//! for.

mod drive;
mod events;
mod judge;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use manifest::{Action, ProbeConfig, ProbeSpec};
use probes::Kernel;
use vmm::Host;
use vmm::boot::KernelFile;

use crate::busy::BusyError;
use crate::busy::guest::{Guest, Observed};
use crate::line::Backend;
use crate::runner::{Runner, verdict};
use errors::chain;

use events::{ALWAYS_RETURNED, EVENTS, Ending, GroundEvent};

/// The names of the cases, in the order in which they are run.
pub(crate) fn names() -> Vec<&'static str> {
    EVENTS.iter().map(|event| event.name).collect()
}

/// Room for a crash kernel beside the guest's own.
const MEMORY_BYTES: u64 = 512 << 20;
const LIMIT: Duration = Duration::from_secs(240);
/// The maximum number of calls of a return probe followed at the same time: every task may be asleep in a call.
const MAXACTIVE: usize = 4096;

/// Probes whose hits the guest counts, and the count for each.
const COUNTED: [(&str, judge::Counted); 3] = [
    ("kprobe:__x64_sys_openat", |counts| counts.openat),
    ("kretprobe:__x64_sys_read", |counts| counts.read),
    ("kprobe:__x64_sys_getpid", |counts| counts.getpid),
];

/// The cases to run.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The kind of KVM, for the lines.
    pub backend: Backend,
    /// The guest's kernel, unpacked.
    pub kernel: &'a Path,
    /// The guest's initramfs, with `ground` as init.
    pub initrd: &'a Path,
    /// Only cases with this text in the name, or with one of several texts, separated by commas.
    pub only: &'a str,
    /// vCPUs of the guest.
    pub cpus: u8,
    /// Jumps replace the plants of probes that only count, where possible.
    pub optimise: bool,
    /// More for the kernel's command line.
    pub parameters: &'a str,
}

impl Ground<'_> {
    /// Runs the cases and prints a line for each. Returns how many failed.
    ///
    /// # Errors
    ///
    /// See [`BusyError`]; a failed case is not an error.
    pub fn run(&self, output: &mut dyn Write) -> Result<usize, BusyError> {
        let began = Instant::now();
        let host = Host::open()?;
        let facts = vmm::self_test(&host)?;
        let mut runner = Runner::begin(self.backend, self.only, &facts, began, output)?;
        let file = KernelFile::open(self.kernel)?;
        let vmlinux = file.vmlinux()?;
        let initrd = std::fs::read(self.initrd)?;
        let guest = Guest {
            host: &host,
            facts,
            file: &file,
            vmlinux: &vmlinux,
            initrd: &initrd,
            cpus: self.cpus,
            memory_bytes: MEMORY_BYTES,
        };
        for event in &EVENTS {
            runner.case(event.name, || verdict(self.check(&guest, event)))?;
        }
        Ok(runner.end()?)
    }

    fn check(&self, guest: &Guest<'_>, event: &GroundEvent) -> Result<String, String> {
        let probes = probes(&guest.kernel()?, event)?;
        let unprobed = self.observe(guest, event, &[])?;
        let probed = self.observe(guest, event, &probes)?;
        judge::judge(event, &unprobed, &probed)
    }

    fn observe(
        &self,
        guest: &Guest<'_>,
        event: &GroundEvent,
        probes: &[ProbeConfig],
    ) -> Result<Observed, String> {
        let workload = format!(
            "event={} {} {}",
            event.name, event.parameters, self.parameters
        );
        let last = match event.ending {
            Ending::PowersOff | Ending::HandsOver => "workload: done",
            Ending::Resets => "ground: panic",
        };
        let (observed, driven) = guest.observe(&workload, probes, LIMIT, last, |live| {
            if !self.optimise {
                let paused = live.control.pause_all();
                live.engine.set_optimising(&paused, false).map_err(chain)?;
            }
            drive::drive(live, event, !probes.is_empty())
        })?;
        match driven {
            Ok(()) => Ok(observed),
            Err(error) => Err(observed.wrong(&error)),
        }
    }
}

/// The probes for `event`, on the functions present in the kernel.
fn probes(kernel: &Kernel, event: &GroundEvent) -> Result<Vec<ProbeConfig>, String> {
    let mut specs: Vec<String> = COUNTED.iter().map(|(spec, _)| (*spec).to_owned()).collect();
    let mut seen: BTreeSet<String> = specs.iter().cloned().collect();
    for (kind, patterns) in [
        ("kprobe", [event.entered, event.always_entered()]),
        ("kretprobe", [event.returned, ALWAYS_RETURNED]),
    ] {
        for pattern in patterns
            .iter()
            .flat_map(|list| list.split_ascii_whitespace())
        {
            for symbol in kernel.symbols().matching(pattern) {
                let is_code = symbol.is_text()
                    && symbol.size > 0
                    && kernel.holds_code(symbol.address)
                    && !kernel.is_init(symbol.address)
                    && !symbol.name.contains(".cold");
                let is_alone = || kernel.symbols().lookup_all(&symbol.name).len() == 1;
                let spec = format!("{kind}:{}", symbol.name);
                if is_code && is_alone() && seen.insert(spec.clone()) {
                    specs.push(spec);
                }
            }
        }
    }
    specs.extend(event.in_modules.iter().map(|spec| (*spec).to_owned()));
    specs.iter().map(|spec| new_probe(spec)).collect()
}

fn new_probe(spec: &str) -> Result<ProbeConfig, String> {
    Ok(ProbeConfig {
        action: Action::Count,
        maxactive: Some(MAXACTIVE),
        ..ProbeConfig::from(spec.parse::<ProbeSpec>().map_err(chain)?)
    })
}
