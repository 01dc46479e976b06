//! A registered probe: purpose, place and counts. The counts include the counts of a detour.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::Gva;
use arc_swap::{ArcSwapOption, Guard};
use detour::{Keeps, Words};
use events::{ProbeId, ProbeSummary};
use introspect::signature::Variable;
use introspect::{ModuleEvent, Signature};
use manifest::program::{AggregateResult, Condition, Filter, Operand};
use manifest::{FilePlace, Location, ProbeKind, ProbeSpec, ProgramCode};
use text::GuestError;

use super::{
    Interests, KernelEvent, Missed, ProbeCounters, Purpose, ReturnAction, StatusCell, TierCell,
};
use crate::applied::Filtered;
use crate::arguments::ArgumentSource;
use crate::resolve::{Place, TaskMember, Via, words_in_module};
use crate::tracepoint_record::RecordAtSite;

/// A probe. Any vCPU writes the counters; the thread that has paused the vCPUs writes the state.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) id: ProbeId,
    pub(crate) name: Arc<str>,
    pub(crate) purpose: Purpose,
    /// The filter of the hits; without a filter, each hit counts.
    pub(crate) filter: Option<Filtered>,
    /// The types of the function, if the probe shows them. For a probe in a module, they come with the place.
    signature: ArcSwapOption<Signature>,
    /// The variables of a source line, of which the signature is made.
    pub(crate) variables: Arc<[Variable]>,
    /// Whether hits and returns show the stack.
    pub(crate) has_stack: bool,
    /// Where the arguments are at the site.
    pub(crate) arguments: ArgumentSource,
    /// Whether the arguments of a hit could not be read once, and a note has said so.
    unread: AtomicBool,
    /// For a tracepoint: the record, if the probe shows its fields. For a probe in a module, it comes with the place.
    record: ArcSwapOption<RecordAtSite>,
    /// Whether the fields of a hit could not be computed once, and a note has said so.
    without_fields: AtomicBool,
    /// The resolved location: none if the probe was refused, or the module is not loaded.
    place: ArcSwapOption<Place>,
    /// For a probe in a module: the specification, resolved when the module is loaded.
    pub(crate) in_module: Option<ProbeSpec>,
    /// For a watchpoint at data of a task: the data.
    pub(crate) in_task: Option<TaskMember>,
    /// For a probe in a program: the file and the place in it.
    pub(crate) in_program: Option<ProgramCode>,
    /// Whether the probe is one match of a pattern, or one site of a tracepoint.
    is_match: bool,
    enabled: AtomicBool,
    /// The address of the plant or debug register; 0 without either.
    planted: AtomicU64,
    pub(crate) counters: ProbeCounters,
    pub(crate) tier: TierCell,
    pub(crate) status: StatusCell,
    /// The interests that the engine counts for the probe.
    interests: Mutex<Interests>,
    /// The counters in a detour.
    counted: Mutex<Option<Words>>,
}

/// The counts of a detour, or of a detour and of exits together.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    hits: u64,
    /// Records for which the ring had no room.
    dropped: u64,
}

impl Probe {
    pub(crate) fn new(
        id: ProbeId,
        name: Arc<str>,
        purpose: Purpose,
        place: Option<Place>,
        enabled: bool,
    ) -> Self {
        Self {
            id,
            name,
            purpose,
            filter: None,
            signature: ArcSwapOption::empty(),
            variables: Arc::default(),
            has_stack: false,
            arguments: ArgumentSource::Registers,
            unread: AtomicBool::new(false),
            record: ArcSwapOption::empty(),
            without_fields: AtomicBool::new(false),
            place: ArcSwapOption::from_pointee(place),
            in_module: None,
            in_task: None,
            in_program: None,
            is_match: false,
            enabled: AtomicBool::new(enabled),
            planted: AtomicU64::new(0),
            counters: ProbeCounters::default(),
            tier: TierCell::default(),
            counted: Mutex::default(),
            interests: Mutex::default(),
            status: StatusCell::default(),
        }
    }

    /// Creates a probe for a function or site that matches this probe's pattern.
    pub(crate) fn matched(&self, name: &Arc<str>) -> Self {
        let (name, purpose) = (Arc::clone(name), self.purpose.for_another());
        let filter = self.filter.as_ref().map(|filtered| filtered.filter.clone());
        let matched = Self::new(self.id, name, purpose, None, self.is_enabled())
            .filtered(filter)
            .showing(self.arguments, self.has_stack);
        Self {
            is_match: true,
            ..matched
        }
    }

    /// Adds a filter: only accepted hits count.
    pub(crate) fn filtered(self, filter: Option<Filter>) -> Self {
        Self {
            filter: filter.map(Filtered::from),
            ..self
        }
    }

    /// Sets where the arguments are at the site. Hits and returns show the stack if `has_stack`.
    pub(crate) fn showing(self, arguments: ArgumentSource, has_stack: bool) -> Self {
        Self {
            arguments,
            has_stack,
            ..self
        }
    }

    pub(crate) fn signature(&self) -> Guard<Option<Arc<Signature>>> {
        self.signature.load()
    }

    /// Whether this is the first hit whose arguments cannot be read.
    pub(crate) fn is_first_unread(&self) -> bool {
        !self.unread.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn record(&self) -> Guard<Option<Arc<RecordAtSite>>> {
        self.record.load()
    }

    /// Sets the record of the tracepoint: hits show its fields.
    pub(crate) fn set_record(&self, record: Option<RecordAtSite>) {
        self.record.store(record.map(Arc::new));
    }

    /// Whether this is the first hit whose fields cannot be computed.
    pub(crate) fn is_first_without_fields(&self) -> bool {
        !self.without_fields.swap(true, Ordering::Relaxed)
    }

    /// Sets the types of the function: hits and returns show them.
    pub(crate) fn set_signature(&self, signature: Option<Arc<Signature>>) {
        self.signature.store(signature);
    }

    /// The most words of the watched data, also of a module that is not loaded, or of a process that is not started.
    pub(crate) fn words(&self) -> usize {
        match (self.place(), &self.in_module, &self.in_task) {
            (Some(place), ..) => place.words(),
            (None, Some(spec), _) => words_in_module(spec),
            (None, None, Some(member)) => member.words(),
            (None, None, None) => 0,
        }
    }

    /// Whether hits show variables.
    pub(crate) fn shows_variables(&self) -> bool {
        let signature = self.signature.load();
        let signature = signature.as_ref();
        signature.is_some_and(|signature| signature.is_of_variables())
    }

    /// Whether each hit shows memory.
    pub(crate) fn reads_memory(&self) -> bool {
        matches!(self.purpose, Purpose::Trace)
            && (self.has_stack
                || !self.arguments.is_registers()
                || (self.signature.load().as_ref())
                    .is_some_and(|signature| signature.needs_memory()))
    }

    /// Whether the filter or the aggregate reads an argument that is in memory.
    pub(crate) fn program_reads_memory(&self) -> bool {
        let conditions = self.filter.iter().flat_map(|it| it.filter.conditions());
        let compared = conditions.filter_map(Condition::operand);
        let added = self.purpose.aggregated().map(|it| it.aggregate.of());
        let mut operands = compared.chain(added);
        !self.arguments.is_registers() && operands.any(|of| matches!(of, Operand::Argument(_)))
    }

    /// Sets the variables that hits show in place of a function's parameters.
    pub(crate) fn with_variables(self, variables: Arc<[Variable]>) -> Self {
        Self { variables, ..self }
    }

    /// Adds a specification that is resolved when its module is loaded.
    pub(crate) fn awaiting(self, spec: ProbeSpec) -> Self {
        Self {
            in_module: Some(spec),
            ..self
        }
    }

    /// Puts the watchpoint at data of a task.
    pub(crate) fn in_task(self, member: TaskMember) -> Self {
        Self {
            in_task: Some(member),
            ..self
        }
    }

    /// Puts the probe into the programs that map a file.
    pub(crate) fn in_programs(self, code: ProgramCode) -> Self {
        Self {
            in_program: Some(code),
            ..self
        }
    }

    /// Whether the probe is at the marks of a file.
    pub(crate) fn is_at_marks(&self) -> bool {
        let place = self.in_program.as_ref().map(|code| &code.place);
        matches!(place, Some(FilePlace::Marks(_)))
    }

    /// Replaces the interests, and returns the former interests.
    pub(crate) fn replace_interests(&self, now: Interests) -> Interests {
        let mut interests = self
            .interests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *interests, now)
    }

    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.place.load_full()
    }

    pub(crate) fn set_place(&self, place: Option<Place>) {
        self.place.store(place.map(Arc::new));
    }

    /// Whether the probe is a pattern over modules, whose matches are probes of their own. A tracepoint stands for its sites.
    pub(crate) fn is_glob(&self) -> bool {
        let is_pattern = |spec: &ProbeSpec| {
            matches!(spec.location, Location::Glob(_)) || spec.kind == ProbeKind::Tracepoint
        };
        !self.is_match && self.in_module.as_ref().is_some_and(is_pattern)
    }

    /// Whether the probe is at a tracepoint that modules pass.
    pub(crate) fn awaits_tracepoint(&self) -> bool {
        let spec = self.in_module.as_ref();
        spec.is_some_and(|spec| spec.kind == ProbeKind::Tracepoint)
    }

    /// Where the arguments of a hit are: at the present site, if there is one.
    pub(crate) fn argument_source(&self) -> ArgumentSource {
        let place = self.place.load();
        place
            .as_ref()
            .map_or(self.arguments, |place| place.arguments)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Release);
    }

    /// The address of the plant or debug register.
    pub(crate) fn planted_at(&self) -> Option<Gva> {
        Some(Gva(self.planted.load(Ordering::Acquire))).filter(|at| *at != Gva(0))
    }

    pub(crate) fn set_planted(&self, at: Option<Gva>) {
        self.planted
            .store(at.map_or(0, |at| at.0), Ordering::Release);
    }

    /// Whether the filter accepted the last hit on `vcpu`. To be called on the vCPU's thread, behind the hit.
    pub(crate) fn has_hit(&self, vcpu: usize) -> bool {
        let mut filter = self.filter.iter();
        !filter.any(|filtered| filtered.has_turned_away(vcpu))
    }

    /// Whether the probe watches data, also of a module that is not loaded, or of a process that is not started.
    pub(crate) fn is_watch(&self) -> bool {
        let place = self.place.load();
        let is_placed = place
            .as_ref()
            .is_some_and(|place| matches!(place.via, Via::Data { .. }));
        let spec = self.in_module.as_ref();
        is_placed
            || self.in_task.is_some()
            || spec.is_some_and(|spec| spec.kind == ProbeKind::Watch)
    }

    /// Whether the engine's own probe sees that a module comes or goes.
    pub(crate) fn sees_modules_go(&self) -> bool {
        matches!(
            self.purpose,
            Purpose::KernelEvent(KernelEvent::Module(
                ModuleEvent::Loaded | ModuleEvent::Unloading
            ))
        )
    }

    /// Whether the engine's own probe sees that a task starts or is freed.
    pub(crate) fn sees_tasks(&self) -> bool {
        matches!(
            self.purpose,
            Purpose::KernelEvent(KernelEvent::TaskStarted | KernelEvent::TaskFreed)
        )
    }

    /// Whether a hit is counted, and nothing else.
    pub(crate) fn only_counts(&self) -> bool {
        self.filter.is_none() && matches!(self.purpose, Purpose::Count)
    }

    fn counted(&self) -> MutexGuard<'_, Option<Words>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts hits in `words` from now on, besides the hits with exits. The other vCPUs are paused.
    ///
    /// # Errors
    ///
    /// If `words` cannot be written; then nothing has changed.
    pub(crate) fn count_in(&self, words: Words) -> Result<(), GuestError> {
        let mut counted = self.counted();
        if counted.as_ref() == Some(&words) {
            // A vCPU or task inside the detour has continued to count there after the jump was removed.
            return Ok(());
        }
        match &self.purpose {
            Purpose::Aggregate(aggregated) => words.write(&aggregated.aggregate.initial())?,
            _ => words.write(&[0])?,
        }
        self.end_counting(&mut counted);
        *counted = Some(words);
        Ok(())
    }

    /// Ends counting in a detour. The other vCPUs are paused.
    pub(crate) fn count_in_none(&self) {
        self.end_counting(&mut self.counted());
    }

    /// Ends counting in a detour if its counters are `words`.
    pub(crate) fn stop_counting_in(&self, words: &Words) {
        let mut counted = self.counted();
        if counted.as_ref() == Some(words) {
            self.end_counting(&mut counted);
        }
    }

    fn end_counting(&self, counted: &mut Option<Words>) {
        if let Some(words) = counted.take() {
            let in_detour = self.in_detour(&words);
            self.counters.add_hits(in_detour.hits);
            self.counters
                .add_missed(Missed::RingFull, in_detour.dropped);
            if let Purpose::Aggregate(aggregated) = &self.purpose {
                aggregated.merge(&words.read());
            }
        }
    }

    /// The counts in a detour's counters.
    fn in_detour(&self, words: &Words) -> Counts {
        let count = words.count();
        let (hits, dropped) = match &self.purpose {
            Purpose::Trace => (0, count),
            // A call without a record is a hit, too.
            Purpose::Return(_) => (count, count),
            _ => (count, 0),
        };
        Counts { hits, dropped }
    }

    /// The counts of exits and of the detour together. Both are read under the lock, so a count that
    /// [`end_counting`](Self::end_counting) moves is in exactly one of the two.
    fn counts(&self) -> Counts {
        let counted = self.counted();
        let in_detour = counted.as_ref().map(|words| self.in_detour(words));
        let in_detour = in_detour.unwrap_or_default();
        Counts {
            hits: self.counters.hits().saturating_add(in_detour.hits),
            dropped: self
                .counters
                .missed_for(Missed::RingFull)
                .saturating_add(in_detour.dropped),
        }
    }

    /// The aggregated values, those of a detour included.
    fn result(&self) -> Option<AggregateResult> {
        let aggregated = self.purpose.aggregated()?;
        let counted = self.counted();
        let values = counted
            .as_ref()
            .filter(|_| matches!(self.purpose, Purpose::Aggregate(_)));
        Some(aggregated.result(values.map(Words::read).as_deref()))
    }

    /// The work of a detour at a hit; none if the hit needs an exit.
    pub(crate) fn kept_by_detour(&self) -> Option<Keeps> {
        let keeps = match &self.purpose {
            Purpose::Count => Keeps::Count,
            Purpose::Trace if !self.reads_memory() => Keeps::Records,
            // A hit that the filter rejects needs no exit.
            Purpose::Trace if self.filter.is_some() => Keeps::Exits,
            Purpose::Aggregate(aggregated) => Keeps::Aggregate(aggregated.aggregate),
            // A hit that the filter rejects needs no exit.
            Purpose::Handle(handler) if self.filter.is_some() && !handler.0.has_post() => {
                Keeps::Exits
            }
            Purpose::Return(returns) if !matches!(returns.action, ReturnAction::Handle(_)) => {
                Keeps::Calls
            }
            _ => return None,
        };
        // Asked at every hit that exits: the purpose decides for most probes.
        let needs_exit =
            self.is_watch() || self.in_program.is_some() || self.program_reads_memory();
        (!needs_exit).then_some(keeps)
    }

    pub(crate) fn summary(&self) -> ProbeSummary {
        let status = self.status.get();
        let counts = self.counts();
        let missed = Missed::ALL.iter().filter_map(|(why, name)| {
            let count = match why {
                Missed::RingFull => counts.dropped,
                why => self.counters.missed_for(*why),
            };
            (count > 0).then(|| ((*name).to_owned(), count))
        });
        let follows = matches!(self.purpose, Purpose::Return(_));
        ProbeSummary {
            probe: self.name.to_string(),
            ip: status.ip,
            hits: counts.hits,
            missed: missed.collect::<BTreeMap<_, _>>(),
            tier: self.tier.get(),
            exits: self.counters.exits(),
            returns: follows.then(|| self.counters.returns()),
            in_flight: follows.then(|| self.counters.in_flight() as u64),
            state: status.state,
            reason: status.reason,
            unoptimised: status.unoptimised,
            filter: self
                .filter
                .as_ref()
                .map(|filtered| filtered.filter.to_string()),
            result: self.result(),
        }
    }
}

#[cfg(test)]
mod tests {
    use text::testing::FakeMemory;

    use super::*;

    /// One thread reads while another adds the detour's counts to the counts of exits.
    #[test]
    fn hits_never_go_back_while_a_detour_stops_counting() {
        const ROUNDS: u64 = 20_000;
        let words = Words::of(Arc::new(FakeMemory::new(vec![0; 16])));
        let probe = Probe::new(ProbeId(1), "probe".into(), Purpose::Count, None, true);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while !is_done.load(Ordering::Acquire) {
                    let hits = probe.summary().hits;
                    assert!(hits >= last, "{hits} after {last}");
                    last = hits;
                }
            });
            for _ in 0..ROUNDS {
                probe.count_in(words.clone()).expect("written");
                words.write(&[7]).expect("written");
                probe.count_in_none();
                if reader.is_finished() {
                    break;
                }
            }
            is_done.store(true, Ordering::Release);
        });
        assert_eq!(probe.summary().hits, 7 * ROUNDS);
    }

    /// A probe whose detour counts in the words that are returned.
    fn probe_with_detour(purpose: Purpose) -> (Probe, Words) {
        let words = Words::of(Arc::new(FakeMemory::new(vec![0; 16])));
        let probe = Probe::new(ProbeId(1), "probe".into(), purpose, None, true);
        probe.count_in(words.clone()).expect("written");
        (probe, words)
    }

    #[test]
    fn overwritten_counter_leaves_hits_at_the_greatest_number() {
        let (probe, words) = probe_with_detour(Purpose::Count);
        probe.counters.count_hit();
        words.write(&[u64::MAX]).expect("written");
        assert_eq!(probe.summary().hits, u64::MAX);
        probe.count_in_none();
        assert_eq!(probe.summary().hits, u64::MAX);
        probe.counters.count_hit();
        probe.counters.count_recorded();
        assert_eq!(probe.summary().hits, u64::MAX);
    }

    #[test]
    fn overwritten_counter_leaves_missed_at_the_greatest_number() {
        let (probe, words) = probe_with_detour(Purpose::Trace);
        let missed = || probe.summary().missed.into_values().collect::<Vec<_>>();
        probe.counters.miss(Missed::RingFull);
        words.write(&[u64::MAX]).expect("written");
        assert_eq!(missed(), [u64::MAX]);
        probe.count_in_none();
        assert_eq!(missed(), [u64::MAX]);
        probe.counters.miss(Missed::RingFull);
        assert_eq!(missed(), [u64::MAX]);
    }
}
