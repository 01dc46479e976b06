//! Records: hits that detours have left in the ring, told as if their vCPU had left the guest for each.
//!
//! Threads: a thread of the session takes them out every few milliseconds; so does a vCPU that has left the guest and is
//! about to tell something, so that what is told is in order; so does whoever asks for numbers. One at a time does, and
//! nobody who does waits for a vCPU. `docs/optimised.md` has the rest.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use introspect::Gva;

use super::Engine;
use super::trap::HitOutcome;
use crate::detour::{LeftAt, Record};
use crate::guest::{GuestError, Paused, Vcpu};
use crate::handler::{HitContext, PreOutcome};
use crate::registry::{Probe, Purpose};
use crate::{ProbeState, WhenFull};

/// IA32_TIME_STAMP_COUNTER.
const MSR_TSC: u32 = 0x10;

/// Whose records are whose, and what their times are.
#[derive(Debug, Default)]
pub(super) struct Records {
    owners: Mutex<HashMap<u32, Owner>>,
    /// How fast time stamp counters count, kHz; 0 while that is not known.
    khz: AtomicU64,
    /// What the guest's was at a time of ours.
    set: OnceLock<ClockSet>,
    /// When the last record was, by our clock.
    last_ns: AtomicU64,
    /// Records that no detour of ours can have left.
    foreign: AtomicU64,
    /// What detours do that are made from now on.
    drops: AtomicBool,
}

/// Who is told of the hits of a part of detours.
#[derive(Clone, Debug)]
enum Owner {
    Probe {
        probe: Arc<Probe>,
        /// What the probe is about.
        ip: Gva,
    },
    /// The calls that return here.
    Returns(Gva),
    /// A probe that has been removed. The guest may have been in its detour then: what is left later is dropped.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct ClockSet {
    tsc: u64,
    ns: u64,
}

impl Records {
    pub(super) fn when_full(&self) -> WhenFull {
        if self.drops.load(Ordering::Acquire) {
            WhenFull::Drop
        } else {
            WhenFull::Exit
        }
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<u32, Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the part of this number is `probe`'s.
    pub(super) fn is_owner(&self, who: u32, probe: &Arc<Probe>) -> bool {
        let owners = self.owners();
        matches!(owners.get(&who), Some(Owner::Probe { probe: owner, .. }) if Arc::ptr_eq(owner, probe))
    }

    /// Whether the part of this number is that of no probe that is armed or may be armed again.
    pub(super) fn has_no_owner(&self, who: u32) -> bool {
        match self.owners().get(&who) {
            Some(Owner::Probe { probe, .. }) => {
                matches!(probe.state(), ProbeState::Gone | ProbeState::Refused)
            }
            Some(Owner::Returns(_)) => false,
            Some(Owner::Gone) | None => true,
        }
    }

    /// The part of this number works for `probe`, which is about `ip`. The other vCPUs are paused. Returns the other
    /// probe that it did so for.
    pub(super) fn set_owner(&self, who: u32, probe: &Arc<Probe>, ip: Gva) -> Option<Arc<Probe>> {
        let owner = Owner::Probe {
            probe: Arc::clone(probe),
            ip,
        };
        match self.owners().insert(who, owner)? {
            Owner::Probe { probe: before, .. } if !Arc::ptr_eq(&before, probe) => Some(before),
            _ => None,
        }
    }

    /// The part of this number records that calls return to `site`. The other vCPUs are paused.
    pub(super) fn set_returns(&self, who: u32, site: Gva) {
        self.owners().insert(who, Owner::Returns(site));
    }

    /// These probes have been removed.
    fn forget_owners(&self, gone: &[Arc<Probe>]) {
        let gone: BTreeSet<_> = gone.iter().map(Arc::as_ptr).collect();
        for owner in self.owners().values_mut() {
            if let Owner::Probe { probe, .. } = owner
                && gone.contains(&Arc::as_ptr(probe))
            {
                *owner = Owner::Gone;
            }
        }
    }

    /// Finds out how fast time stamp counters count, if that is not known: in some 20 ms.
    pub(super) fn measure_clock(&self) {
        if self.khz.load(Ordering::Acquire) == 0 {
            self.set_clock(vmm::tsc_khz());
        }
    }

    fn set_clock(&self, khz: u64) {
        self.khz.store(khz.max(1), Ordering::Release);
    }

    /// When a record was made: by the guest's counter, but not before the one that was taken out before it, and not
    /// later than now.
    fn time(&self, tsc: u64, now_ns: u64) -> u64 {
        let khz = self.khz.load(Ordering::Acquire).max(1);
        let by_counter = self.set.get().map_or(now_ns, |set| {
            let ticks = i128::from(tsc.wrapping_sub(set.tsc).cast_signed());
            let ns = i128::from(set.ns) + ticks * 1_000_000 / i128::from(khz);
            u64::try_from(ns).unwrap_or(0)
        });
        let last = self.last_ns.load(Ordering::Relaxed);
        let ns = by_counter.max(last).min(now_ns);
        self.last_ns.store(ns, Ordering::Relaxed);
        ns
    }
}

impl Engine {
    /// Time stamp counters count so many thousands a second. Until that is known, detours do not record.
    pub(crate) fn set_clock(&self, khz: u64) {
        self.records.set_clock(khz);
    }

    /// What a hit does that a detour has no room to record. To be set before probes are armed: jumps that are there stay as
    /// they are.
    pub fn set_when_full(&self, when_full: WhenFull) {
        let drops = when_full == WhenFull::Drop;
        self.records.drops.store(drops, Ordering::Release);
    }

    /// Tells of the hits that detours have recorded, if there are some. Any thread may do so at any time. Says how many
    /// there were.
    pub fn take_out_records(&self) -> usize {
        let ring = self.detour.ring();
        let Some(ring) = ring.as_ref().filter(|ring| ring.has_records()) else {
            return 0;
        };
        let mut taken = 0;
        let done = ring.take_out(|record| {
            taken += 1;
            self.tell_record(&record);
        });
        self.heed(done);
        taken
    }

    /// These probes have been removed: the hits that they have recorded are told, and none that a thread, which is in one
    /// of their detours, may record later.
    pub(super) fn forget_owners(&self, gone: &[Arc<Probe>]) {
        self.take_out_records();
        self.records.forget_owners(gone);
    }

    fn heed(&self, done: Result<(), GuestError>) {
        if let Err(error) = done {
            self.note(None, format!("records cannot be read: {error}"));
        }
    }

    fn tell_record(&self, record: &Record) {
        let owner = self.records.owners().get(&record.who).cloned();
        let vcpu = usize::try_from(record.cpu).unwrap_or(usize::MAX);
        let Some(owner) = owner else {
            if self.records.foreign.fetch_add(1, Ordering::Relaxed) == 0 {
                let text = "the guest writes to the ring of records: there is one of no probe";
                self.note(None, text.to_owned());
            }
            return;
        };
        let ts_ns = self.records.time(record.tsc, self.now_ns());
        let (probe, ip) = match owner {
            Owner::Probe { probe, ip } => (probe, ip),
            Owner::Returns(site) => {
                self.leave_recorded_calls(site, ts_ns, vcpu, record);
                return;
            }
            Owner::Gone => return,
        };
        probe.count_recorded();
        match &probe.purpose {
            Purpose::Return(purpose) => self.enter_recorded_call(&probe, purpose, record, ts_ns),
            _ => self.tell_hit_at(ts_ns, &probe, vcpu, ip.into(), &record.regs),
        }
    }

    /// A vCPU has left the guest in a part of a detour: it records and has found no room, or a handler is to be called. What is
    /// in the ring is told, and then this hit of this part's probe; those of the parts behind it are told when these are executed.
    pub(super) fn on_left(
        &self,
        vcpu: &mut dyn Vcpu,
        left: LeftAt,
    ) -> Result<HitOutcome, GuestError> {
        self.open_ring(vcpu)?;
        self.take_out_records();
        let regs = vcpu.regs()?;
        let mut hit = HitContext::new(vcpu, &self.planter, &self.table, regs);
        let owner = self.records.owners().get(&left.who).cloned();
        let (mut resumes, mut needs_pause) = (false, false);
        match owner {
            Some(Owner::Probe { probe, ip }) if probe.planted_at().is_some() => {
                probe.count_hit();
                hit.regs.rip = ip.0;
                match &probe.purpose {
                    Purpose::Trace => self.tell_hit(&probe, hit.vcpu(), ip.into(), &hit.regs),
                    Purpose::Handle(handler) => {
                        resumes = handler.0.pre(&mut hit) == PreOutcome::Resume;
                    }
                    Purpose::Return(purpose) => {
                        needs_pause = self.enter_call(&mut hit, &probe, purpose);
                    }
                    // Their detours do not leave the guest.
                    _ => (),
                }
            }
            Some(Owner::Returns(site)) => {
                hit.regs.rip = site.0;
                self.leave_calls(&mut hit, site)?;
            }
            // A probe that was disabled or removed meanwhile is told no more: the jump is gone, too.
            Some(Owner::Probe { .. } | Owner::Gone) | None => (),
        }
        if needs_pause {
            return Ok(HitOutcome::NeedsPause);
        }
        if !resumes {
            hit.regs.rip = left.on.0;
        }
        let regs = hit.regs;
        vcpu.set_regs(&regs)?;
        Ok(HitOutcome::Resume)
    }

    /// A vCPU has left the guest in a detour with a call that returns to where nothing is planted yet. It has been told,
    /// and the other vCPUs are paused.
    pub(super) fn on_paused_left(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        left: LeftAt,
    ) -> Result<(), GuestError> {
        self.plant_asked_sites(paused);
        let mut regs = vcpu.regs()?;
        regs.rip = left.on.0;
        vcpu.set_regs(&regs)
    }

    /// The ring is closed until it is known what the counters in records mean.
    fn open_ring(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let ring = self.detour.ring();
        let Some(ring) = ring.as_ref().filter(|ring| !ring.is_open()) else {
            return Ok(());
        };
        if self.records.khz.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        if self.records.set.get().is_none() {
            let tsc = vcpu.read_msr(MSR_TSC)?;
            let ns = self.now_ns();
            self.records.set.get_or_init(|| ClockSet { tsc, ns });
        }
        ring.open()
    }
}
