//! Probes: what was asked for, and what became of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::resolve::Place;
use crate::{Hex, ProbeState, ProbeSummary, Tier};

/// Why the engine has planted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The user wants to know.
    Report,
    /// The engine itself does.
    Milestone(Milestone),
}

/// A point in the guest's life at which the engine has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Milestone {
    /// The kernel has patched itself for this machine: what it rewrites at boot can be planted.
    BootPatched,
    /// The kernel is about to free its init text: plants there must go, for the pages are given to somebody else.
    InitFreed,
    /// The kernel panics.
    Panic,
}

impl Milestone {
    pub(crate) const ALL: [Self; 3] = [Self::BootPatched, Self::InitFreed, Self::Panic];

    /// The function whose entry it is. All kernels from 5.10 to 7.2 have them, and none inlines them.
    pub(crate) const fn function(self) -> &'static str {
        match self {
            Self::BootPatched => "rest_init",
            Self::InitFreed => "free_initmem",
            Self::Panic => "panic",
        }
    }
}

/// One probe. Counters are written by any vCPU; the state by whoever holds the vCPUs paused.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) name: Arc<str>,
    pub(crate) purpose: Purpose,
    /// `None` for one that was refused, or whose place is not known yet.
    pub(crate) place: Option<Place>,
    hits: AtomicU64,
    exits: AtomicU64,
    tier: AtomicU8,
    status: Mutex<Status>,
}

#[derive(Clone, Debug)]
struct Status {
    state: ProbeState,
    reason: Option<String>,
    ip: Option<Hex>,
}

const TIER_NONE: u8 = 0;
const TIER_EMULATED: u8 = 1;
const TIER_STEPPED: u8 = 2;

impl Probe {
    pub(crate) fn new(name: Arc<str>, purpose: Purpose, place: Option<Place>) -> Self {
        Self {
            name,
            purpose,
            place,
            hits: AtomicU64::new(0),
            exits: AtomicU64::new(0),
            tier: AtomicU8::new(TIER_NONE),
            status: Mutex::new(Status {
                state: ProbeState::Pending,
                reason: None,
                ip: None,
            }),
        }
    }

    /// One hit has been handled, after one exit.
    pub(crate) fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.exits.fetch_add(1, Ordering::Relaxed);
    }

    /// Going past the instruction took another exit.
    pub(crate) fn count_step(&self) {
        self.exits.fetch_add(1, Ordering::Relaxed);
    }

    /// How the vCPU got past the instruction. The costlier tier stays: it is what the user should know.
    pub(crate) fn passed_by(&self, tier: Tier) {
        let value = match tier {
            Tier::Emulated | Tier::Relocated => TIER_EMULATED,
            Tier::Stepped => TIER_STEPPED,
        };
        self.tier.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn set_state(&self, state: ProbeState, reason: Option<String>) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.state = state;
        status.reason = reason;
    }

    pub(crate) fn set_armed(&self, ip: Hex) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        *status = Status {
            state: ProbeState::Armed,
            reason: None,
            ip: Some(ip),
        };
    }

    pub(crate) fn state(&self) -> ProbeState {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .state
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn summary(&self) -> ProbeSummary {
        let status = self
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        ProbeSummary {
            probe: self.name.to_string(),
            ip: status.ip,
            hits: self.hits(),
            missed: BTreeMap::new(),
            tier: match self.tier.load(Ordering::Relaxed) {
                TIER_EMULATED => Some(Tier::Emulated),
                TIER_STEPPED => Some(Tier::Stepped),
                _ => None,
            },
            exits: self.exits.load(Ordering::Relaxed),
            state: status.state,
            reason: status.reason,
        }
    }
}
