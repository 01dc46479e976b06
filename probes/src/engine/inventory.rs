//! What there is, for those who look at a running engine from outside. Any thread may ask at any time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use introspect::paging::VirtReadError;
use introspect::{Gpa, Gva, PhysMemory as _, read_virt};

use super::Engine;
use crate::program::Aggregate;
use crate::registry::{Probe, ProbeId, Purpose, ReturnAction};
use crate::{ProbeAction, ProbeKind, ProbeSummary};

/// A probe with what it was asked to do and what has become of it.
#[derive(Clone, Debug)]
pub struct ProbeRecord {
    /// Its name within the engine. The matches of a pattern in a module share one.
    pub id: ProbeId,
    /// What it is.
    pub kind: ProbeKind,
    /// The probed instruction as `symbol+0xoffset`, once that is known.
    pub symbol: Option<Arc<str>>,
    /// The module that it was asked for in.
    pub module: Option<String>,
    /// Its own switch.
    pub enabled: bool,
    /// What is done at its hits; `None` for an aggregate and for a program's own handler.
    pub action: Option<ProbeAction>,
    /// What is kept of its hits' values.
    pub aggregate: Option<Aggregate>,
    /// For a return probe: calls that are followed at once.
    pub maxactive: Option<usize>,
    /// Its state and its counters.
    pub summary: ProbeSummary,
}

/// Where to read.
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
    /// The kernel's page tables do not lead there.
    #[error("cannot read {len} bytes at the kernel's address {at}: {why}")]
    Virtual {
        /// Where.
        at: Gva,
        /// How many.
        len: usize,
        /// What was found on the way. Part of the message.
        why: VirtReadError,
    },
    /// There is no memory.
    #[error("the guest has no memory of {len} bytes at guest-physical {at}")]
    Physical {
        /// Where.
        at: Gpa,
        /// How many.
        len: usize,
    },
    /// The kernel has not come up to its page tables yet, and it is not in its image either.
    #[error(
        "the guest has not booted far enough to find {at}: until its kernel runs its first task, only its image can be read"
    )]
    TooEarly {
        /// Where.
        at: Gva,
    },
}

impl Engine {
    /// Every probe, in the order in which they were asked for. A pattern in a module is told by its matches, once it
    /// has any.
    #[must_use]
    pub fn records(&self) -> Vec<ProbeRecord> {
        self.told(|_| true)
            .iter()
            .map(|probe| record(probe))
            .collect()
    }

    /// The probe called `id`; several for a pattern in a module.
    #[must_use]
    pub fn records_of(&self, id: ProbeId) -> Vec<ProbeRecord> {
        self.told(|known| known == id)
            .iter()
            .map(|probe| record(probe))
            .collect()
    }

    /// The first `most` of the probes with these ids, in the order in which they were asked for.
    #[must_use]
    pub fn records_among(&self, ids: &BTreeSet<ProbeId>, most: usize) -> Vec<ProbeRecord> {
        let told = self.told(|known| ids.contains(&known));
        told.iter().take(most).map(|probe| record(probe)).collect()
    }

    /// The knob of [`set_armed`](Self::set_armed).
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// How far the kernel runs from where it was linked, once it has said so.
    #[must_use]
    pub fn slide(&self) -> Option<i64> {
        self.located.get().map(|located| located.slide)
    }

    /// Nanoseconds since the guest's first instruction: what events count in.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.now_ns()
    }

    /// Reads guest memory as the guest sees it, without plants. The guest may be writing there meanwhile: pause it for
    /// bytes that belong together.
    ///
    /// # Errors
    ///
    /// When some of it cannot be read; what `buf` holds then is unspecified.
    pub fn read(&self, at: At, buf: &mut [u8]) -> Result<(), ReadError> {
        let len = buf.len();
        match at {
            At::Physical(at) => {
                let read = self.planter.read(at, buf);
                read.map_err(|_| ReadError::Physical { at, len })
            }
            At::Virtual(at) => match self.modules.paging() {
                Some(paging) => read_virt(&self.planter, &paging, at, buf)
                    .map_err(|why| ReadError::Virtual { at, len, why }),
                None => {
                    let gpa = self
                        .located
                        .get()
                        .and_then(|located| self.gpa_of(located.linked(at), located));
                    let gpa = gpa.ok_or(ReadError::TooEarly { at })?;
                    let read = self.planter.read(gpa, buf);
                    read.map_err(|_| ReadError::TooEarly { at })
                }
            },
        }
    }
}

fn record(probe: &Probe) -> ProbeRecord {
    let (kind, action, maxactive) = match &probe.purpose {
        Purpose::Trace => (ProbeKind::Kprobe, Some(ProbeAction::Trace), None),
        Purpose::Count => (ProbeKind::Kprobe, Some(ProbeAction::Count), None),
        Purpose::Aggregate(_) | Purpose::Handle(_) | Purpose::Inject(_) | Purpose::Milestone(_) => {
            (ProbeKind::Kprobe, None, None)
        }
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
    ProbeRecord {
        id: probe.id,
        kind,
        symbol: probe.place().map(|place| Arc::clone(&place.symbol)),
        module: probe
            .in_module
            .as_ref()
            .and_then(|spec| spec.module.clone()),
        enabled: probe.is_enabled(),
        action,
        aggregate: probe.purpose.aggregated().map(|it| it.aggregate),
        maxactive,
        summary: probe.summary(),
    }
}
