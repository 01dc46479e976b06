//! A plant: a site in memory, and the probes there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use arc_swap::ArcSwapOption;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use text::{KernelTables, KnowsTables, Planter, Spot};

use crate::registry::{KernelEvent, Probe, Purpose};

/// A plant: the site, and the probes with an interest in the site.
#[derive(Debug)]
pub(crate) struct Plant {
    /// Address in the kernel's own mapping.
    pub(crate) at: Gva,
    pub(crate) spot: Spot,
    /// Whether followed calls return to the site.
    pub(crate) returns: bool,
    /// The probes in the order of registration, each with its probed address.
    pub(crate) probes: Vec<(Arc<Probe>, Gva)>,
    /// The original instruction; `None` if the bytes do not decode. Replaced when the guest rewrites the bytes.
    displaced: Arc<ArcSwapOption<Decoded>>,
    pub(crate) optimising: Arc<Optimising>,
}

/// The verdict on a jump in place of the plant, if known, and the jump, if any.
#[derive(Debug, Default)]
pub(crate) struct Optimising {
    decided: AtomicBool,
    /// The number of rewrites of the site by the guest.
    rewrites: AtomicUsize,
    /// The guest-physical address of the jump.
    jump: Mutex<Option<Gpa>>,
}

/// After as many rewrites by the guest, a site keeps its plant: each further verdict would cost a pause.
const MAX_REWRITES: usize = 10_000;

impl Optimising {
    /// Whether a verdict is due: none has been reached yet, or the site has changed since.
    pub(crate) fn is_open(&self) -> bool {
        !self.decided.load(Ordering::Relaxed)
    }

    /// Marks the verdict as reached.
    pub(crate) fn decide(&self) {
        self.decided.store(true, Ordering::Relaxed);
    }

    /// Makes a new verdict due after a change, except a rewrite by the guest.
    pub(crate) fn reopen(&self) {
        if !self.is_rewritten_too_often() {
            self.decided.store(false, Ordering::Relaxed);
        }
    }

    /// Makes a new verdict due after a rewrite by the guest.
    pub(crate) fn reopen_rewritten(&self) {
        self.rewrites.fetch_add(1, Ordering::Relaxed);
        if self.is_rewritten_too_often() {
            self.decide();
        } else {
            self.decided.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the site keeps its plant because of the number of rewrites.
    pub(crate) fn is_rewritten_too_often(&self) -> bool {
        self.rewrites.load(Ordering::Relaxed) >= MAX_REWRITES
    }

    fn lock(&self) -> MutexGuard<'_, Option<Gpa>> {
        self.jump.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest-physical address of the jump that replaces the plant.
    pub(crate) fn jump(&self) -> Option<Gpa> {
        *self.lock()
    }

    pub(crate) fn set_jump(&self, jump: Option<Gpa>) {
        *self.lock() = jump;
    }
}

impl Plant {
    pub(crate) fn new(at: Gva, spot: Spot) -> Self {
        Self {
            at,
            spot,
            returns: false,
            probes: Vec::new(),
            displaced: Arc::default(),
            optimising: Arc::default(),
        }
    }

    /// The kernel's page tables for a vCPU that has executed the plant's byte at `rip`; `None` if `rip` is another mapping of the byte.
    pub(crate) fn kernel_tables<'a>(
        &self,
        known_to: &'a dyn KnowsTables,
        rip: Gva,
    ) -> Option<KernelTables<'a>> {
        (rip == self.at).then(|| KernelTables::for_hit(known_to, self.at, self.spot))
    }

    /// A plant at the same site, with other probes.
    pub(crate) fn of_interest_to(&self, probes: Vec<(Arc<Probe>, Gva)>, returns: bool) -> Self {
        Self {
            returns,
            probes,
            displaced: Arc::clone(&self.displaced),
            optimising: Arc::clone(&self.optimising),
            ..*self
        }
    }

    /// Whether the plant reports this kernel event.
    pub(crate) fn has_kernel_event(&self, kernel_event: KernelEvent) -> bool {
        let mut purposes = self.probes.iter().map(|(probe, _)| &probe.purpose);
        purposes.any(|purpose| matches!(purpose, Purpose::KernelEvent(own) if *own == kernel_event))
    }

    /// Whether the plant reports any kernel event.
    pub(crate) fn has_kernel_events(&self) -> bool {
        let mut purposes = self.probes.iter().map(|(probe, _)| &probe.purpose);
        purposes.any(|purpose| matches!(purpose, Purpose::KernelEvent(_)))
    }

    /// Reads and decodes the original bytes anew.
    pub(crate) fn refresh(&self, planter: &Planter) {
        self.displaced
            .store(own_instruction(planter, self.spot, self.at).map(Arc::new));
    }

    /// The displaced instruction, decoded for the execution address `rip`. Only the first code of a boot has an execution
    /// address other than the plant's: the code runs at the load address.
    pub(crate) fn displaced(&self, planter: &Planter, rip: Gva) -> Option<Decoded> {
        if rip == self.at {
            self.displaced.load().as_deref().copied()
        } else {
            own_instruction(planter, self.spot, rip)
        }
    }
}

/// The original instruction at `spot`, decoded for the address `at`.
pub(crate) fn own_instruction(planter: &Planter, spot: Spot, at: Gva) -> Option<Decoded> {
    let mut bytes = [0; MAX_LENGTH_BYTES];
    let (here, beyond) = bytes.split_at_mut(spot.room().min(MAX_LENGTH_BYTES));
    planter.read_own(spot.gpa, here).ok()?;
    let mut len = here.len();
    if let Some(page) = spot.beyond
        && planter.read_own(page, beyond).is_ok()
    {
        len += beyond.len();
    }
    decode(&bytes[..len], at).ok()
}
