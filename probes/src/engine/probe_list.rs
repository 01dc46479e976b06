//! The registered probes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};

use arc_swap::ArcSwap;
use errors::chain;
use events::{ProbeId, ProbeState};
use introspect::signature::Variable;
use manifest::{Action, DataBase, Location, ProbeConfig, ProbeKind, WatchedData};

use crate::ResolveError;
use crate::arguments::ArgumentSource;
use crate::engine::abilities::Abilities;
use crate::engine::arm::error::ArmError;
use crate::engine::engine_action::EngineAction;
use crate::engine::interest::{Counted, Interest, interests};
use crate::engine::programs::check_operands;
use crate::engine::reporter::Reporter;
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::engine::typed::{shows_types, signature_for};
use crate::handler::Shared;
use crate::inject::Injector;
use crate::registry::{Interests, Missed, Probe, Purpose, ReturnAction, ReturnPurpose};
use crate::resolve::tracepoints::remark;
use crate::resolve::{ProbeNumber, ProgramProblem, Refusal, Resolved, WatchProblem, resolve};
use crate::tracepoint_record::{RecordAtSite, TracepointRecord, tracepoint_of};

/// The default maximum number of followed calls of a return probe.
const DEFAULT_MAXACTIVE: usize = 256;

/// Checks whether the engine and the host can serve a probe in a program, maybe with a handler.
fn check_program(running: &Running, is_handled: bool) -> Result<(), ProgramProblem> {
    match running.abilities {
        _ if is_handled => Err(ProgramProblem::Handler),
        Abilities { interprets, .. } if interprets => Err(ProgramProblem::Interpreted),
        Abilities { debug_execute, .. } if !debug_execute => Err(ProgramProblem::DebugRegisters),
        _ => Ok(()),
    }
}

/// Checks whether the engine and the host can serve a watchpoint, maybe with a handler.
fn check_data(running: &Running, data: &WatchedData, is_handled: bool) -> Result<(), WatchProblem> {
    let is_in_register = data.access.is_in_register();
    let is_in_task = matches!(data.base, DataBase::TaskMember { .. });
    match running.abilities {
        _ if is_handled => Err(WatchProblem::Handler),
        Abilities { interprets, .. } if interprets && is_in_task => Err(WatchProblem::Interpreted),
        _ if is_in_register && running.probes_in_registers() => {
            Err(WatchProblem::RegistersForInstructions)
        }
        Abilities { debug_writes, .. } if is_in_register && !debug_writes => {
            Err(WatchProblem::NoRegisters)
        }
        _ => Ok(()),
    }
}

/// The registered probes, and their knob.
#[derive(Debug)]
pub(crate) struct ProbeList {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) return_sites: Arc<ReturnSites>,
    /// In the order of registration. Replaced with the vCPUs paused.
    pub(crate) list: ArcSwap<Vec<Arc<Probe>>>,
    /// The number of probes with each interest.
    pub(crate) counted: Counted,
    pub(crate) next_id: AtomicU64,
    /// The knob: off removes every plant, and keeps each probe's own switch.
    pub(crate) armed: AtomicBool,
    /// The note that the kernel has no types.
    pub(crate) untyped: Once,
}

impl ProbeList {
    /// The probes for `new`, in order; a glob resolves to many probes.
    pub(crate) fn resolve_all(
        &self,
        new: &[ProbeConfig<EngineAction>],
        slide: Option<i64>,
    ) -> Result<Vec<Arc<Probe>>, ResolveError> {
        let slide = slide.unwrap_or(0);
        let mut probes = Vec::new();
        let present = self.list.load();
        let words = present.iter().map(|probe| probe.words()).sum();
        let mut number = ProbeNumber::new(present.len(), words);
        for ProbeConfig {
            at: spec,
            action,
            filter,
            maxactive,
            enabled,
            stack,
            variables,
        } in new
        {
            let kernel = &self.running.kernel;
            check_operands(kernel, spec.kind, filter.as_ref(), action).map_err(|problem| {
                ResolveError {
                    spec: spec.to_string(),
                    problem,
                }
            })?;
            let is_handled = !matches!(action, EngineAction::Configured(_));
            if let Location::Program(_) = &spec.location {
                check_program(&self.running, is_handled).map_err(|problem| ResolveError {
                    spec: spec.to_string(),
                    problem: problem.into(),
                })?;
            }
            if let Location::Data(data) = &spec.location {
                check_data(&self.running, data, is_handled).map_err(|problem| ResolveError {
                    spec: spec.to_string(),
                    problem: problem.into(),
                })?;
            }
            let follow = |action| {
                Purpose::Return(ReturnPurpose {
                    action,
                    maxactive: maxactive.unwrap_or(DEFAULT_MAXACTIVE),
                })
            };
            let purpose = match (spec.kind.is_return(), action) {
                (true, EngineAction::HandleReturn(handler)) => {
                    follow(ReturnAction::Handle(Shared(Arc::clone(handler))))
                }
                (true, EngineAction::Configured(Action::Count)) => follow(ReturnAction::Count),
                (true, EngineAction::Configured(Action::Aggregate(aggregate))) => {
                    follow(ReturnAction::Aggregate(Arc::new((*aggregate).into())))
                }
                (true, _) => follow(ReturnAction::Trace),
                (
                    false,
                    EngineAction::Configured(Action::Trace) | EngineAction::HandleReturn(_),
                ) => Purpose::Trace,
                (false, EngineAction::Configured(Action::Count)) => Purpose::Count,
                (false, EngineAction::Configured(Action::Aggregate(aggregate))) => {
                    Purpose::Aggregate(Arc::new((*aggregate).into()))
                }
                (false, EngineAction::Handle(handler)) => {
                    Purpose::Handle(Shared(Arc::clone(handler)))
                }
                (false, EngineAction::Inject(injection)) => {
                    // A pattern's matches count their calls together.
                    Purpose::Inject(Arc::new(Injector::from(injection.clone())))
                }
            };
            let found = resolve(&self.running.kernel, spec, slide)?;
            number.add(spec, found.len())?;
            number.add_words(spec, found.iter().map(|it| it.words(spec)).sum())?;
            let mut remark = (spec.kind == ProbeKind::Tracepoint)
                .then(|| remark(&self.running.kernel, spec))
                .flatten();
            for Resolved { name, place } in found {
                let name = match &purpose {
                    // An injection may share the site with a probe that reports or counts hits.
                    Purpose::Inject(_) => name.replacen("kprobe:", "inject:", 1).into(),
                    _ => name,
                };
                let (place, why) = match place {
                    Ok(place) => (Some(place), None),
                    Err(refusal) => (None, Some(refusal)),
                };
                let member = match &why {
                    Some(Refusal::NotStarted { member }) => Some(member.clone()),
                    _ => None,
                };
                let arguments = match &place {
                    Some(place) => place.arguments,
                    None => ArgumentSource::of_kind(spec.kind),
                };
                let variables: Arc<[Variable]> =
                    variables.iter().cloned().map(Variable::from).collect();
                let signature = place.as_ref().and_then(|place| {
                    signature_for(&self.running.kernel, &name, &purpose, place, &variables)
                });
                let id = ProbeId(self.next_id.fetch_add(1, Ordering::Relaxed));
                let mut probe = Probe::new(id, name, purpose.for_another(), place, *enabled)
                    .filtered(filter.clone())
                    .showing(arguments, *stack);
                if spec.module.is_some() {
                    probe = probe.with_variables(variables);
                }
                probe.set_signature(signature);
                probe.set_record(self.record_for(&probe));
                self.running.prepare(&probe);
                if let Some(text) = remark.take() {
                    self.reporter.note(Some(&probe), text);
                }
                if let Some(why) = why {
                    let awaits = why.is_pending();
                    let state = if awaits {
                        ProbeState::Pending
                    } else {
                        ProbeState::Refused
                    };
                    probe.status.set_state(state, Some(why.to_string()));
                    probe = match (&spec.location, member) {
                        (Location::Program(code), _) => probe.in_programs(code.clone()),
                        (_, Some(member)) => probe.in_task(member),
                        _ if awaits => probe.awaiting(spec.clone()),
                        _ => probe,
                    };
                }
                probes.push(Arc::new(probe));
            }
        }
        self.note_missing_types(&probes);
        Ok(probes)
    }

    /// The record of the tracepoint of `probe` in the kernel proper, if hits show its fields.
    fn record_for(&self, probe: &Probe) -> Option<RecordAtSite> {
        let place = probe.place()?;
        let is_tracepoint = matches!(place.arguments, ArgumentSource::Block { .. });
        (is_tracepoint && shows_types(&probe.purpose)).then_some(())?;
        let name = tracepoint_of(&probe.name)?;
        let Running {
            kernel, abilities, ..
        } = &*self.running;
        Some(TracepointRecord::in_kernel(
            kernel,
            name,
            &place,
            abilities.features,
        ))
    }

    /// Notes once that the kernel has no types, if one of `probes` would show them.
    fn note_missing_types(&self, probes: &[Arc<Probe>]) {
        if !probes.iter().any(|probe| shows_types(&probe.purpose)) {
            return;
        }
        if let Err(error) = self.running.kernel.types() {
            self.untyped.call_once(|| {
                let why = chain(error);
                let text = format!("events show neither typed arguments nor tasks: {why}");
                self.reporter.note(None, text);
            });
        }
    }

    /// Refuses `probe`. Accesses to data of a module or task from now on are not seen, and another load or task may be watched.
    pub(crate) fn refuse(&self, probe: &Probe, reason: String) {
        let is_new = probe.status.state() != ProbeState::Refused;
        let comes_again = probe.in_module.is_some() || probe.in_task.is_some();
        if is_new && probe.is_watch() && comes_again {
            probe.counters.miss(Missed::Unprotected);
        }
        self.reporter
            .note(Some(probe), format!("cannot be armed: {reason}"));
        probe.status.set_state(ProbeState::Refused, Some(reason));
        probe.set_signature(None);
        probe.set_record(None);
        self.count_interest(probe);
    }

    /// Refuses all pending probes after arming failed while the guest runs: the guest continues without them.
    pub(crate) fn refuse_pending(&self, error: &ArmError) {
        self.refuse_pending_of(error, |_| true);
    }

    /// Refuses the pending watchpoints. Returns whether there are any.
    pub(crate) fn refuse_pending_watches(&self, error: &ArmError) -> bool {
        self.refuse_pending_of(error, Probe::is_watch)
    }

    fn refuse_pending_of(&self, error: &ArmError, is_refused: impl Fn(&Probe) -> bool) -> bool {
        let reason = chain(error);
        let list = self.list.load();
        let is_pending = |probe: &&Arc<Probe>| {
            probe.status.state() == ProbeState::Pending && probe.place().is_some()
        };
        let mut has_refused = false;
        let pending = list.iter().filter(is_pending);
        for probe in pending.filter(|probe| is_refused(probe)) {
            self.refuse(probe, reason.clone());
            has_refused = true;
        }
        has_refused
    }

    /// Whether followed calls return to a module.
    pub(crate) fn returns_to_modules(&self) -> bool {
        self.running.located.get().is_some_and(|located| {
            let (image, slide) = (self.running.kernel.image(), located.slide.cast_unsigned());
            let running = image.start.wrapping_add(slide)..image.end.wrapping_add(slide);
            self.return_sites.has_outside(&running)
        })
    }

    /// Counts a registered probe by its present interests.
    pub(crate) fn count_interest(&self, probe: &Probe) {
        self.replace_interest(probe, interests(probe));
    }

    /// Removes a probe from the counts.
    pub(crate) fn forget_interest(&self, probe: &Probe) {
        self.replace_interest(probe, Interests::default());
    }

    fn replace_interest(&self, probe: &Probe, now: Interests) {
        let before = probe.replace_interests(now);
        if before != now {
            let mut totals = self.counted.lock();
            totals.count(before, false);
            totals.count(now, true);
        }
    }

    /// Computes the present requirements of all probes.
    pub(crate) fn interest(&self) -> Interest {
        let totals = *self.counted.lock();
        #[cfg(test)]
        self.check_totals(totals);
        Interest {
            calls: totals.calls > 0,
            modules: self.watches_modules(),
            plants: totals.plants > 0 && self.running.boot_patched.get(),
            files: totals.files > 0 && self.running.boot_patched.get(),
            tasks: totals.tasks > 0,
            exits_at_returns: totals.exits_at_returns > 0,
        }
    }

    /// Whether plants in modules are possible: some probe is in a module, or followed calls return to a module.
    pub(crate) fn watches_modules(&self) -> bool {
        self.counted.lock().modules > 0 || self.returns_to_modules()
    }

    /// Checks the totals against a count of all probes.
    #[cfg(test)]
    fn check_totals(&self, totals: crate::engine::interest::Totals) {
        let mut expected = crate::engine::interest::Totals::default();
        for probe in self.list.load().iter() {
            expected.count(interests(probe), true);
        }
        assert_eq!(totals, expected);
    }
}
