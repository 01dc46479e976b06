//! The inventory of a running engine: probes, switches, and guest memory. Any thread may ask at any time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use address::{Gpa, Gva};
use events::{ProbeId, ProbeStatus, ProbeSummary};
use introspect::paging::VirtReadError;
use introspect::{PhysMemory as _, read_virt, walk};
use manifest::{ProbeAction, ProbeKind};

use crate::arguments::ArgumentSource;
use crate::engine::probe_list::ProbeList;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::running::Running;
use crate::registry::{Probe, Purpose, ReturnAction};

/// An address to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// In the kernel's own address space.
    Virtual(Gva),
    /// In guest-physical memory.
    Physical(Gpa),
}

/// Guest memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The kernel's page tables do not map the address.
    #[error("cannot read {len} bytes at the kernel's address {at}: {why}")]
    Virtual {
        /// The address.
        at: Gva,
        /// The number of bytes.
        len: usize,
        /// The result of the page walk. Part of the message.
        why: VirtReadError,
    },
    /// The guest has no memory at the address.
    #[error("the guest has no memory of {len} bytes at guest-physical {at}")]
    Physical {
        /// The address.
        at: Gpa,
        /// The number of bytes.
        len: usize,
    },
    /// The kernel's page tables are not known yet, and the address is not in the kernel's image.
    #[error(
        "the guest has not booted far enough to find {at}: until its kernel runs its first task, only its image can be read"
    )]
    TooEarly {
        /// The address.
        at: Gva,
    },
}

/// The inventory of a running engine. Any thread may ask at any time.
#[derive(Debug)]
pub struct Inventory {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) records: Arc<Records>,
}

impl Inventory {
    /// Every probe, in the order of registration. If a pattern in a module has matches, the matches replace the pattern.
    #[must_use]
    pub fn statuses(&self) -> Vec<ProbeStatus> {
        self.reported_probes(|_| true)
            .iter()
            .map(|probe| status(probe))
            .collect()
    }

    /// The probe with the id `id`; several for a pattern in a module.
    #[must_use]
    pub fn statuses_of(&self, id: ProbeId) -> Vec<ProbeStatus> {
        self.reported_probes(|known| known == id)
            .iter()
            .map(|probe| status(probe))
            .collect()
    }

    /// The first `most` probes with the given ids, in the order of registration.
    #[must_use]
    pub fn statuses_among(&self, ids: &BTreeSet<ProbeId>, most: usize) -> Vec<ProbeStatus> {
        let told = self.reported_probes(|known| ids.contains(&known));
        told.iter().take(most).map(|probe| status(probe)).collect()
    }

    /// The VM exits of each probe, in the order of registration. The probes of a pattern in a module share an id. For thousands of
    /// probes this is much cheaper than [`statuses`](Self::statuses).
    #[must_use]
    pub fn exits(&self) -> Vec<(ProbeId, u64)> {
        let probes = self.probes.list.load();
        let of = probes
            .iter()
            .map(|probe| (probe.id, probe.counters.exits()));
        of.collect()
    }

    /// The knob of [`Engine::set_armed`](crate::Engine::set_armed).
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.probes.armed.load(Ordering::Acquire)
    }

    /// The run-time address of the kernel less its link address, once known.
    #[must_use]
    pub fn slide(&self) -> Option<i64> {
        self.running.slide()
    }

    /// Nanoseconds since the guest's first instruction: the clock of events.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.reporter.now_ns()
    }

    /// The ranges of guest RAM in ascending order; whole pages. Detour memory is no RAM.
    #[must_use]
    pub fn ram(&self) -> Vec<Range<Gpa>> {
        self.running.memory.ranges()
    }

    /// The guest-physical address of `at`, an address of the kernel. Before the kernel's page tables are known, only addresses of the
    /// kernel's image have one.
    #[must_use]
    pub fn translate(&self, at: Gva) -> Option<Gpa> {
        match self.running.modules.paging() {
            Some(paging) => Some(walk(&self.running.planter, &paging, at).ok()?.gpa),
            None => {
                let located = self.running.located.get()?;
                self.running.gpa_of(located.linked(at), located)
            }
        }
    }

    /// Reads guest memory as seen by the guest, without plants. The guest may write at the same time: pause the guest for
    /// bytes that belong together.
    ///
    /// # Errors
    ///
    /// If any byte cannot be read; then the contents of `buf` are unspecified.
    pub fn read(&self, at: At, buf: &mut [u8]) -> Result<(), ReadError> {
        let len = buf.len();
        match at {
            At::Physical(at) => {
                let read = self.running.planter.read(at, buf);
                read.map_err(|_| ReadError::Physical { at, len })
            }
            At::Virtual(at) => match self.running.modules.paging() {
                Some(paging) => read_virt(&self.running.planter, &paging, at, buf)
                    .map_err(|why| ReadError::Virtual { at, len, why }),
                None => {
                    let gpa = self.translate(at).ok_or(ReadError::TooEarly { at })?;
                    let read = self.running.planter.read(gpa, buf);
                    read.map_err(|_| ReadError::TooEarly { at })
                }
            },
        }
    }
}

fn status(probe: &Probe) -> ProbeStatus {
    let (kind, action, maxactive) = match &probe.purpose {
        Purpose::Trace => (ProbeKind::Kprobe, Some(ProbeAction::Trace), None),
        Purpose::Count => (ProbeKind::Kprobe, Some(ProbeAction::Count), None),
        Purpose::Aggregate(_)
        | Purpose::Handle(_)
        | Purpose::Inject(_)
        | Purpose::KernelEvent(_) => (ProbeKind::Kprobe, None, None),
        Purpose::Return(returns) => (
            ProbeKind::Kretprobe,
            match returns.action {
                ReturnAction::Trace => Some(ProbeAction::Trace),
                ReturnAction::Count => Some(ProbeAction::Count),
                ReturnAction::Aggregate(_) | ReturnAction::Handle(_) => None,
            },
            Some(returns.maxactive),
        ),
    };
    ProbeStatus {
        id: probe.id,
        name: None,
        kind: match probe.arguments {
            _ if probe.is_watch() => ProbeKind::Watch,
            _ if probe.is_at_marks() => ProbeKind::Usdt,
            _ if probe.in_program.is_some() => match kind.is_return() {
                true => ProbeKind::Uretprobe,
                false => ProbeKind::Uprobe,
            },
            ArgumentSource::Registers => kind,
            ArgumentSource::Caller => kind.of_syscall(),
            ArgumentSource::Block { .. } => ProbeKind::Tracepoint,
        },
        symbol: probe.place().map(|place| Arc::clone(&place.symbol)),
        module: probe
            .in_module
            .as_ref()
            .and_then(|spec| Some(spec.module.as_ref()?.name.clone())),
        enabled: probe.is_enabled(),
        action,
        aggregate: probe
            .purpose
            .aggregated()
            .map(|it| it.aggregate.to_string()),
        maxactive: maxactive.map(|most| most as u64),
        summary: probe.summary(),
    }
}

impl Inventory {
    /// The ids of all probes, in the order of their registration.
    #[must_use]
    pub fn ids(&self) -> Vec<ProbeId> {
        let mut ids: Vec<_> = self
            .probes
            .list
            .load()
            .iter()
            .map(|probe| probe.id)
            .collect();
        ids.dedup();
        ids
    }

    /// The state and the counters of each probe, in the order of registration.
    #[must_use]
    pub fn summaries(&self) -> Vec<ProbeSummary> {
        self.reported_probes(|_| true)
            .iter()
            .map(|probe| probe.summary())
            .collect()
    }

    /// The wanted probes for a report. If a glob in a module has matches, the matches replace the glob.
    fn reported_probes(&self, is_wanted: impl Fn(ProbeId) -> bool) -> Vec<Arc<Probe>> {
        // Recorded hits are part of the counters.
        self.records.take_out_records();
        let probes = self.probes.list.load();
        let stands_for = |glob: &Probe| {
            let alike = |probe: &&Arc<Probe>| probe.id == glob.id;
            glob.is_glob() && probes.iter().filter(alike).count() > 1
        };
        let wanted = probes.iter().filter(|probe| is_wanted(probe.id));
        let told = wanted.filter(|probe| !stands_for(probe));
        told.cloned().collect()
    }
}
