//! One case.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_images::testguest::Outcome;
use introspect::insn::Decoded;
use probes::{
    Event, EventSink, GuestEnd, Kernel, NewProbe, PlantByte, ProbeSpec, Session, SessionConfig,
    Summary, Tier,
};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, Host, HostFacts};

use super::cases::{CaseSpec, Probed};
use super::flow;
use super::{Contract, ContractError};
use crate::chain::chain;

const MEMORY_BYTES: u64 = 64 << 20;
/// So many of a case's faults are told.
const TOLD: usize = 4;

/// What came out of a running guest. Cloning shares it.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<SeenInner>>);

#[derive(Debug, Default)]
struct SeenInner {
    hits: BTreeMap<Arc<str>, u64>,
    notes: Vec<String>,
    console: Vec<u8>,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, SeenInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for Seen {
    fn event(&self, event: Event) {
        let mut seen = self.lock();
        match event {
            Event::Hit(hit) => *seen.hits.entry(hit.probe).or_default() += 1,
            Event::Note(note) => seen.notes.push(note.text),
            // There is no return probe, and a session returns its summary.
            Event::Return(_) | Event::Summary(_) => (),
        }
    }
}

impl Write for Seen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().console.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The test guest and where it runs.
#[derive(Debug)]
pub(super) struct Guest<'a> {
    host: &'a Host,
    facts: HostFacts,
    file: &'a KernelFile,
    vmlinux: Vec<u8>,
    contract: &'a Contract<'a>,
}

impl<'a> Guest<'a> {
    pub(super) fn new(
        host: &'a Host,
        facts: HostFacts,
        file: &'a KernelFile,
        contract: &'a Contract<'a>,
    ) -> Result<Self, ContractError> {
        let vmlinux = file.vmlinux()?.into_owned();
        // What is wrong with it is better told once than by each case.
        Kernel::from_vmlinux(&vmlinux)?;
        Ok(Self {
            host,
            facts,
            file,
            vmlinux,
            contract,
        })
    }

    /// Runs a case. The text says what was counted, or what is wrong.
    pub(super) fn run(
        &self,
        case: &CaseSpec,
        plant: Option<PlantByte>,
        cpus: u8,
    ) -> Result<String, String> {
        let kernel = Kernel::from_vmlinux(&self.vmlinux).map_err(chain)?;
        let mut functions = flow::functions(&kernel)?;
        functions.retain(|name, _| !self.contract.without.contains(name));
        let probes = probes(case.probed, &functions)?;
        let cmdline = format!("run={}", case.scenarios);
        let seen = Seen::default();
        let config = SessionConfig {
            file: self.file,
            vmlinux: &self.vmlinux,
            kernel,
            method: BootMethod::Direct,
            initrd: None,
            cmdline: &cmdline,
            memory_bytes: MEMORY_BYTES,
            cpus,
            probes: &probes,
            plant,
            console: Console {
                output: Box::new(seen.clone()),
                input: None,
            },
            debug_exit: true,
        };
        let session =
            Session::new(self.host, self.facts, config, Arc::new(seen.clone())).map_err(chain)?;
        let summary = session
            .run(Some(self.contract.timeout), "kvm")
            .map_err(chain)?;
        let seen = std::mem::take(&mut *seen.lock());
        let outcome = Outcome::from_console(&String::from_utf8_lossy(&seen.console));
        let mut wrong = faults(&summary, &outcome, &seen);
        match case.probed {
            Probed::Nothing => (),
            Probed::Entries => wrong.extend(entries(case, &summary, &outcome)),
            Probed::Other(_) => wrong.extend(refused(&summary)),
            Probed::Instructions => {
                wrong.extend(instructions(case, &functions, &summary, &outcome))
            }
        }
        if wrong.is_empty() {
            Ok(counted(&summary))
        } else {
            let more = wrong.len().saturating_sub(TOLD);
            wrong.truncate(TOLD);
            let more = if more > 0 {
                format!("; and {more} more")
            } else {
                String::new()
            };
            Err(wrong.join("; ") + &more)
        }
    }
}

fn probes(
    probed: Probed,
    functions: &BTreeMap<String, Vec<Decoded>>,
) -> Result<Vec<NewProbe>, String> {
    let specs: Vec<String> = match probed {
        Probed::Nothing => Vec::new(),
        Probed::Entries => functions
            .keys()
            .map(|name| format!("kprobe:{name}"))
            .collect(),
        Probed::Other(function) => vec![format!("kprobe:{function}")],
        Probed::Instructions => functions
            .iter()
            .flat_map(|(name, code)| code.iter().map(|at| flow::probe(name, code, at)))
            .collect(),
    };
    let new = |spec: &String| spec.parse::<ProbeSpec>().map(NewProbe::from).map_err(chain);
    specs.iter().map(new).collect()
}

/// What is wrong with any run: the guest's end, what it found, notes, events that do not add up.
fn faults(summary: &Summary, outcome: &Outcome, seen: &SeenInner) -> Vec<String> {
    let mut wrong = Vec::new();
    let guest = &summary.guest;
    if guest.end != GuestEnd::Exit || guest.detail.as_deref() != Some("0") {
        let detail = guest.detail.as_deref().unwrap_or("");
        wrong.push(format!("the guest's end: {:?} {detail}", guest.end));
    }
    wrong.extend(outcome.failures.iter().cloned());
    if !outcome.is_good() && outcome.failures.is_empty() {
        let console = String::from_utf8_lossy(&seen.console);
        let last = console.lines().next_back().unwrap_or("nothing");
        wrong.push(format!(
            "the guest did not come to its end; it said last: {last}"
        ));
    }
    wrong.extend(seen.notes.iter().map(|note| format!("note: {note}")));
    for probe in &summary.probes {
        let told = seen.hits.get(&*probe.probe).copied().unwrap_or(0);
        if told != probe.hits {
            wrong.push(format!("{}: {} hits, {told} told", probe.probe, probe.hits));
        }
    }
    wrong
}

/// How often the function's first instruction must have been hit.
fn entered(case: &CaseSpec, outcome: &Outcome, function: &str) -> u64 {
    let extra = case.extra.iter().find(|(name, _)| *name == function);
    outcome.counts.get(function).copied().unwrap_or(0) + extra.map_or(0, |(_, more)| *more)
}

fn entries<'a>(
    case: &'a CaseSpec,
    summary: &'a Summary,
    outcome: &'a Outcome,
) -> impl Iterator<Item = String> + 'a {
    let counts = summary.probes.iter().filter_map(|probe| {
        let expected = entered(case, outcome, probe.probe.trim_start_matches("kprobe:"));
        (probe.hits != expected)
            .then(|| format!("{}: {} hits, {expected} expected", probe.probe, probe.hits))
    });
    let nothing = outcome
        .counts
        .is_empty()
        .then(|| "the guest counted nothing".to_owned());
    counts.chain(nothing).chain(refused(summary))
}

fn refused(summary: &Summary) -> impl Iterator<Item = String> + '_ {
    summary.probes.iter().filter_map(|probe| {
        let reason = probe.reason.as_ref()?;
        Some(format!("{}: {reason}", probe.probe))
    })
}

fn instructions(
    case: &CaseSpec,
    functions: &BTreeMap<String, Vec<Decoded>>,
    summary: &Summary,
    outcome: &Outcome,
) -> Vec<String> {
    let hits: BTreeMap<&str, u64> = summary
        .probes
        .iter()
        .map(|probe| (&*probe.probe, probe.hits))
        .collect();
    let of = |function: &str, code: &[Decoded], at: &Decoded| {
        hits.get(&*flow::probe(function, code, at))
            .copied()
            .unwrap_or(0)
    };
    functions
        .iter()
        .flat_map(|(name, code)| {
            let entered = entered(case, outcome, name);
            flow::mismatches(name, code, entered, |at| of(name, code, at))
        })
        .chain(refused(summary))
        .collect()
}

fn counted(summary: &Summary) -> String {
    let hits: u64 = summary.probes.iter().map(|probe| probe.hits).sum();
    let exits: u64 = summary.probes.iter().map(|probe| probe.exits).sum();
    let stepped = summary
        .probes
        .iter()
        .filter(|probe| probe.tier == Some(Tier::Stepped))
        .count();
    format!(
        "{} probes, {stepped} stepped, {hits} hits, {exits} exits",
        summary.probes.len()
    )
}
