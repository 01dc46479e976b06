//! Records: hits that detours write to the ring, reported as if their vCPU had exited for each.
//!
//! Threads: a thread of the session takes records out every few milliseconds. A vCPU that reports a hit takes them out first,
//! which keeps events in order, and so does a thread that reads counters. A lock lets one thread take out at a time; no
//! thread waits for a vCPU while it holds the lock. Details: `docs/optimised.md`.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use address::Gva;
use detour::{Detour, Record};
use events::{Fields, Param, ProbeState, Task};
use manifest::WhenFull;
use text::{GuestError, Vcpu};

use crate::arguments::as_function;
use crate::engine::hit_arguments::{FoundArguments, HitArguments};
use crate::engine::reporter::{DataAccess, Meaning, Reporter, ReturnedCall};
use crate::engine::returns::following::Following;
use crate::engine::running::Running;
use crate::engine::stacks::{Stack, Stacks};
use crate::engine::tasks::{Position, Tasks, recorded};
use crate::engine::typed::{params, recorded_params, unread_params};
use crate::handler::HitContext;
use crate::hit_state::HitState;
use crate::registry::{Probe, Purpose};
use crate::returns::Instance;

/// IA32_TIME_STAMP_COUNTER.
const MSR_TSC: u32 = 0x10;

/// The owners of detour parts, and the clock of records.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) following: Arc<Following>,
    pub(crate) detour: Arc<Detour>,

    pub(crate) owners: Mutex<HashMap<u32, Owner>>,
    /// The rate of time stamp counters in kHz; 0 while unknown.
    pub(crate) khz: AtomicU64,
    /// The guest's counter at a time of the host's clock.
    pub(crate) set: OnceLock<ClockSet>,
    /// The time of the last hit or return, by the host's clock.
    pub(crate) last_ns: AtomicU64,
    /// The number of records with the number of no part.
    pub(crate) foreign: AtomicU64,
    /// Whether new detours drop a hit when the ring is full.
    pub(crate) drops: AtomicBool,
}

/// The receiver of the hits of a detour part.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    Probe {
        probe: Arc<Probe>,
        /// The probed address.
        ip: Gva,
    },
    /// The calls that return to the given site.
    Returns(Gva),
    /// A removed probe. The guest may have been in its detour at the removal: records written later are dropped.
    Gone,
}

/// A return from a function of a program.
#[derive(Debug)]
pub(crate) struct ProgramReturn {
    /// The name of the function's first instruction.
    pub(crate) symbol: Arc<str>,
    /// The time of the call in nanoseconds.
    pub(crate) entered_ns: u64,
    /// The number of the task's calls in flight further up the stack.
    pub(crate) depth: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockSet {
    tsc: u64,
    ns: u64,
}

impl Records {
    pub(crate) fn when_full(&self) -> WhenFull {
        if self.drops.load(Ordering::Acquire) {
            WhenFull::Drop
        } else {
            WhenFull::Exit
        }
    }

    pub(crate) fn owners(&self) -> MutexGuard<'_, HashMap<u32, Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether part `who` belongs to `probe`.
    pub(crate) fn is_owner(&self, part_number: u32, probe: &Arc<Probe>) -> bool {
        let owners = self.owners();
        matches!(owners.get(&part_number), Some(Owner::Probe { probe: owner, .. }) if Arc::ptr_eq(owner, probe))
    }

    /// Whether part `who` belongs to no probe that is armed or may be armed again.
    pub(crate) fn has_no_owner(&self, part_number: u32) -> bool {
        match self.owners().get(&part_number) {
            Some(Owner::Probe { probe, .. }) => {
                matches!(probe.status.state(), ProbeState::Gone | ProbeState::Refused)
            }
            Some(Owner::Returns(_)) => false,
            Some(Owner::Gone) | None => true,
        }
    }

    /// Assigns part `who` to `probe`, which probes `ip`. The other vCPUs are paused. Returns the former owner, if a different
    /// probe.
    pub(crate) fn set_owner(
        &self,
        part_number: u32,
        probe: &Arc<Probe>,
        ip: Gva,
    ) -> Option<Arc<Probe>> {
        let owner = Owner::Probe {
            probe: Arc::clone(probe),
            ip,
        };
        match self.owners().insert(part_number, owner)? {
            Owner::Probe { probe: before, .. } if !Arc::ptr_eq(&before, probe) => Some(before),
            _ => None,
        }
    }

    /// Assigns part `who` to the calls that return to `site`. The other vCPUs are paused.
    pub(crate) fn set_returns(&self, part_number: u32, site: Gva) {
        self.owners().insert(part_number, Owner::Returns(site));
    }

    /// Measures the rate of time stamp counters, unless known: in some 20 ms.
    pub(crate) fn measure_clock(&self) {
        if self.khz.load(Ordering::Acquire) == 0 {
            self.set_clock(vmm::tsc_khz());
        }
    }

    /// The time of a record, by the guest's counter. The result is not later than now, and not before the last event's time.
    fn time(&self, tsc: u64, now_ns: u64) -> u64 {
        let khz = self.khz.load(Ordering::Acquire).max(1);
        let by_counter = self.set.get().map_or(now_ns, |set| {
            let ticks = i128::from(tsc.wrapping_sub(set.tsc).cast_signed());
            let ns = i128::from(set.ns) + ticks * 1_000_000 / i128::from(khz);
            u64::try_from(ns).unwrap_or(0)
        });
        self.not_before_last(by_counter.min(now_ns))
    }

    /// The time of an event at `ns`, raised to that of the last event: rates are measured, so a record's time may be too early.
    pub(crate) fn not_before_last(&self, ns: u64) -> u64 {
        self.last_ns.fetch_max(ns, Ordering::Relaxed).max(ns)
    }

    /// Sets the rate of the time stamp counters in kHz. Before the rate is set, detours do not record.
    pub(crate) fn set_clock(&self, khz: u64) {
        self.khz.store(khz.max(1), Ordering::Release);
    }

    /// Sets the action for hits without room in the ring. Call this before probes are armed: existing jumps stay unchanged.
    pub(crate) fn set_when_full(&self, when_full: WhenFull) {
        let drops = when_full == WhenFull::Drop;
        self.drops.store(drops, Ordering::Release);
    }

    /// Reports the hits that detours have recorded. Any thread may call this at any time. Returns the number of records.
    pub(crate) fn take_out_records(&self) -> usize {
        let ring = self.detour.ring();
        let Some(ring) = ring.as_ref().filter(|ring| ring.has_records()) else {
            return 0;
        };
        let mut taken = 0;
        let done = ring.take_out(|record| {
            taken += 1;
            self.emit_record(&record);
        });
        self.note_read_error(done);
        taken
    }

    /// Reports the recorded hits of removed probes. If a task inside one of their detours writes a record later, the record is
    /// dropped.
    pub(crate) fn forget_owners(&self, gone: &[Arc<Probe>]) {
        self.take_out_records();
        let gone: BTreeSet<_> = gone.iter().map(Arc::as_ptr).collect();
        for owner in self.owners().values_mut() {
            if let Owner::Probe { probe, .. } = owner
                && gone.contains(&Arc::as_ptr(probe))
            {
                *owner = Owner::Gone;
            }
        }
    }

    fn note_read_error(&self, done: Result<(), GuestError>) {
        if let Err(error) = done {
            self.reporter
                .note(None, format!("records cannot be read: {error}"));
        }
    }

    fn emit_record(&self, record: &Record) {
        let owner = self.owners().get(&record.part_number).cloned();
        let vcpu = usize::try_from(record.cpu).unwrap_or(usize::MAX);
        let Some(owner) = owner else {
            if self.foreign.fetch_add(1, Ordering::Relaxed) == 0 {
                let text = "the guest writes to the ring of records: there is one of no probe";
                self.reporter.note(None, text.to_owned());
            }
            return;
        };
        let ts_ns = self.time(record.tsc, self.reporter.now_ns());
        let (probe, ip) = match owner {
            Owner::Probe { probe, ip } => (probe, ip),
            Owner::Returns(site) => {
                self.following
                    .leave_recorded_calls(site, ts_ns, vcpu, record);
                return;
            }
            Owner::Gone => return,
        };
        probe.counters.count_recorded();
        match &probe.purpose {
            Purpose::Return(purpose) => self
                .following
                .enter_recorded_call(&probe, purpose, record, ts_ns),
            _ => {
                let signature = probe.signature();
                self.reporter.emit_hit_at(
                    ts_ns,
                    &probe,
                    vcpu,
                    ip.into(),
                    &record.regs,
                    Meaning {
                        task: record.task.map(recorded),
                        params: signature
                            .as_ref()
                            .map(|signature| recorded_params(signature, &record.regs)),
                        ..Meaning::default()
                    },
                )
            }
        }
    }

    /// Opens the ring once the rate of the counters is known, and notes the guest's counter.
    pub(crate) fn open_ring(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let ring = self.detour.ring();
        let Some(ring) = ring.as_ref().filter(|ring| !ring.is_open()) else {
            return Ok(());
        };
        if self.khz.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        if self.set.get().is_none() {
            let tsc = vcpu.read_msr(MSR_TSC)?;
            let ns = self.reporter.now_ns();
            self.set.get_or_init(|| ClockSet { tsc, ns });
        }
        ring.open()
    }

    /// Reports a hit. A hit of a watchpoint has `data`: the symbol of the instruction at `ip`, and its access.
    ///
    /// # Errors
    ///
    /// If KVM refuses the request for the vCPU's state.
    pub(crate) fn emit_hit(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        ip: Gva,
        arguments: HitArguments<'_>,
        data: Option<(Arc<str>, DataAccess)>,
    ) -> Result<(), GuestError> {
        let meaning = Meaning {
            data,
            ..self.meaning(hit, probe, ip, arguments)?
        };
        // Earlier records are reported first.
        self.take_out_records();
        let ts_ns = self.not_before_last(self.reporter.now_ns());
        self.reporter
            .emit_hit_at(ts_ns, probe, hit.vcpu(), ip.into(), &hit.regs, meaning);
        Ok(())
    }

    /// Reports the execution of the instruction at `ip`, called `symbol`, of a program, with the number of calls in flight further up the stack.
    ///
    /// # Errors
    ///
    /// If KVM refuses the request for the vCPU's state.
    pub(crate) fn emit_in_program(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        ip: Gva,
        symbol: Arc<str>,
        depth: usize,
        values: Option<(Vec<Param>, [u64; 6])>,
    ) -> Result<(), GuestError> {
        let (task, stack) = self.task_and_stack_in_program(hit, probe)?;
        let (params, arguments) = values.unzip();
        let meaning = Meaning {
            task,
            stack,
            params,
            arguments,
            in_program: Some((symbol, depth)),
            ..Meaning::default()
        };
        self.take_out_records();
        let ts_ns = self.not_before_last(self.reporter.now_ns());
        self.reporter
            .emit_hit_at(ts_ns, probe, hit.vcpu(), ip.into(), &hit.regs, meaning);
        Ok(())
    }

    /// Reports a return from a function of a program; `hit` is behind it.
    ///
    /// # Errors
    ///
    /// If KVM refuses the request for the vCPU's state.
    pub(crate) fn emit_return_in_program(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        returned: ProgramReturn,
    ) -> Result<(), GuestError> {
        let (task, stack) = self.task_and_stack_in_program(hit, probe)?;
        let call = ReturnedCall {
            probe,
            symbol: returned.symbol,
            returns_to: Gva(hit.regs.rip),
            entered_ns: returned.entered_ns,
            depth: returned.depth,
        };
        self.take_out_records();
        let ts_ns = self.not_before_last(self.reporter.now_ns());
        self.reporter
            .emit_returned(ts_ns, call, hit.vcpu(), &hit.regs, task, stack);
        Ok(())
    }

    /// The task of a program at `hit`, and the program's stack if the probe shows it.
    fn task_and_stack_in_program(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
    ) -> Result<(Option<Task>, Option<Stack>), GuestError> {
        let regs = hit.regs;
        let state = hit.state()?;
        let found = self.tasks.at(state, Position::At(Gva(regs.rip)));
        let stack = probe.has_stack.then(|| {
            let task = found.as_ref().map(|found| found.at);
            let paging = &state.registers.paging;
            self.stacks.of_program(paging, &regs, task)
        });
        Ok((found.and_then(|found| found.task), stack))
    }

    /// The meaning of a hit of `probe` at `ip`.
    fn meaning(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        ip: Gva,
        mut arguments: HitArguments<'_>,
    ) -> Result<Meaning, GuestError> {
        let signature = probe.signature();
        let arguments = arguments.at(hit);
        let read = arguments.outside_registers();
        let fields = self.fields(hit, probe, arguments);
        if signature.is_none() && !probe.has_stack && self.running.kernel.tasks().is_none() {
            return Ok(Meaning {
                arguments: read,
                fields,
                ..Meaning::default()
            });
        }
        let own = hit.regs;
        let state = hit.state()?;
        let regs = match read {
            Some(arguments) => as_function(&own, arguments),
            None => own,
        };
        let params = |signature: &Arc<_>| match arguments {
            FoundArguments::Unreadable => unread_params(signature),
            // Members alone are not worth an exit: a probe that could do without shows none, at any hit.
            _ => params(
                &self.running,
                signature,
                &regs,
                &state.walks,
                probe.reads_memory(),
            ),
        };
        let (task, stack) = self.task_and_stack(state, Position::At(ip), &own, probe.has_stack);
        Ok(Meaning {
            task,
            params: signature.as_ref().map(params),
            fields,
            arguments: read,
            data: None,
            in_program: None,
            stack,
        })
    }

    /// The fields of a tracepoint's record. If the arguments are not known, a note has said so, and there are no fields.
    fn fields(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Probe,
        arguments: FoundArguments,
    ) -> Option<Fields> {
        let record = probe.record();
        let record = record.as_deref()?;
        let FoundArguments::Read(_) = arguments else {
            return None;
        };
        let fields = match record {
            Ok(record) => record.fields(hit),
            Err(why) => Err(why.clone()),
        };
        match fields {
            Ok(fields) => Some(fields),
            Err(why) => {
                if probe.is_first_without_fields() {
                    let text = format!("hits have arguments, and no fields: {why}");
                    self.reporter.note(Some(probe), text);
                }
                None
            }
        }
    }

    /// The task at a hit, and with `has_stack` the stack from `regs` on.
    fn task_and_stack(
        &self,
        hit: &HitState,
        position: Position,
        regs: &vmm::kvm_regs,
        has_stack: bool,
    ) -> (Option<Task>, Option<Stack>) {
        let found = self.tasks.at(hit, position);
        let stack = has_stack.then(|| {
            let task = found.as_ref().map(|found| found.at);
            self.stacks.of(&hit.registers.paging, regs, task)
        });
        (found.and_then(|found| found.task), stack)
    }

    /// Reports a return.
    ///
    /// # Errors
    ///
    /// If KVM refuses the request for the vCPU's state.
    pub(crate) fn emit_return(
        &self,
        hit: &mut HitContext<'_>,
        call: &Instance,
    ) -> Result<(), GuestError> {
        let has_stack = call.probe.has_stack;
        let (mut task, mut stack) = (None, None);
        if has_stack || self.running.kernel.tasks().is_some() {
            let regs = hit.regs;
            (task, stack) =
                self.task_and_stack(hit.state()?, Position::BehindReturn, &regs, has_stack);
        }
        // Earlier records are reported first.
        self.take_out_records();
        let ts_ns = self.not_before_last(self.reporter.now_ns());
        self.reporter
            .emit_return_at(ts_ns, call, hit.vcpu(), &hit.regs, task, stack);
        Ok(())
    }
}
