//! The probes that one request adds, from the request's body to their registration.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

use errors::chain;
use events::{ProbeId, ProbeState, ProbeStatus};
use manifest::ProbeConfig;
use probes::{RegisterError, SessionError};
use text::Paused;

use super::add_probe::{config, stands_for_many};
use super::app::lock;
use super::body::{Object, object, parse};
use super::changes::cannot_change;
use super::names::Names;
use crate::api::{AddProbe, Pause, Problem, ProblemKind};
use crate::limits::PROBES_PER_REQUEST;
use crate::operator::Bench;
use crate::target::{Registration, Target};

/// The probes of one request, parsed and checked.
#[derive(Clone, Debug)]
pub(super) struct Additions {
    form: Form,
    configs: Vec<ProbeConfig>,
    /// The own name of each probe, in the order of `configs`.
    names: Vec<Option<String>>,
}

/// Form of a body: one object or an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    One,
    Array,
}

impl Form {
    /// JSON pointer to the probe with the given index in the body.
    fn pointer(self, index: usize) -> String {
        match self {
            Self::One => String::new(),
            Self::Array => format!("/{index}"),
        }
    }
}

impl Additions {
    /// Parses and checks a body.
    pub(super) fn from_body(body: &[u8]) -> Result<Self, Problem> {
        if !body.trim_ascii_start().starts_with(b"[") {
            let wanted = object(parse(body)?)?;
            return Self::new(Form::One, vec![wanted]);
        }
        let wanted: Vec<Object> = parse(body)?;
        if !(1..=PROBES_PER_REQUEST).contains(&wanted.len()) {
            return Err(ProblemKind::Malformed.with(format!(
                "the array has {} probes; it may have 1 to {PROBES_PER_REQUEST}",
                wanted.len()
            )));
        }
        let wanted = wanted.into_iter().enumerate().map(|(index, wanted)| {
            object(wanted).map_err(|problem| problem.at(Form::Array.pointer(index)))
        });
        Self::new(Form::Array, wanted.collect::<Result<_, _>>()?)
    }

    fn new(form: Form, wanted: Vec<AddProbe>) -> Result<Self, Problem> {
        let configs = wanted.iter().enumerate();
        let configs = configs.map(|(index, wanted)| config(wanted, &form.pointer(index)));
        Ok(Self {
            form,
            configs: configs.collect::<Result<_, _>>()?,
            names: wanted.into_iter().map(|wanted| wanted.name).collect(),
        })
    }

    /// JSON pointer to `key` of the probe with the given index.
    fn pointer(&self, index: usize, key: &str) -> String {
        format!("{}/{key}", self.form.pointer(index))
    }

    /// Registers all probes or none, with their names. Runs on the operator's thread.
    ///
    /// The pause covers only the necessary work: planting, and the check for refused probes outside a pattern.
    pub(super) fn register(
        &self,
        bench: &mut Bench<'_>,
        names: &Mutex<Names>,
    ) -> Result<(Vec<ProbeId>, Pause), Problem> {
        self.check_names(&lock(names))?;
        let target = bench.target();
        if target.slide().is_none() {
            self.check_addresses()?;
        }
        let registration = target
            .prepare(&self.configs)
            .map_err(|error| self.cannot_register(&error.into()))?;
        let (planted, pause) =
            bench.paused(|target, paused| self.plant(target, paused, registration));
        let ids = planted?;
        if self.names.iter().any(Option::is_some) {
            let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
            let statuses = target.statuses_among(&known, usize::MAX);
            self.give_names(&statuses, &mut lock(names));
        }
        Ok((ids, pause))
    }

    fn check_names(&self, names: &Names) -> Result<(), Problem> {
        let mut taken = BTreeSet::new();
        for (index, name) in self.names.iter().enumerate() {
            let Some(name) = name else { continue };
            let pointer = || self.pointer(index, "name");
            names
                .check(name, None)
                .map_err(|problem| problem.at(pointer()))?;
            if !taken.insert(name) {
                let twice =
                    ProblemKind::NameTaken.with(format!("two of the probes are called `{name}`"));
                return Err(twice.at(pointer()));
            }
        }
        Ok(())
    }

    fn plant(
        &self,
        target: &dyn Target,
        paused: &dyn Paused,
        registration: Registration<'_>,
    ) -> Result<Vec<ProbeId>, Problem> {
        let ids = registration(paused).map_err(|error| self.cannot_register(&error))?;
        if self
            .configs
            .iter()
            .all(|config| stands_for_many(&config.at))
        {
            return Ok(ids);
        }
        let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
        let statuses = target.statuses_among(&known, usize::MAX);
        if let Some(problem) = self.refused(&statuses) {
            // Added during this pause: none of the probes has fired.
            target.unregister(paused, &ids).map_err(cannot_change)?;
            return Err(problem);
        }
        Ok(ids)
    }

    /// Refuses addresses: until the kernel has reported the running address, an address has no meaning.
    fn check_addresses(&self) -> Result<(), Problem> {
        let is_address = |config: &ProbeConfig| config.at.location.is_address();
        let mut configs = self.configs.iter().enumerate();
        match configs.find(|(_, config)| is_address(config)) {
            None => Ok(()),
            Some((index, config)) => {
                let spec = config.at.clone();
                let told = SessionError::AddressMoves { spec }.to_string();
                Err(ProblemKind::CannotProbe
                    .with(told)
                    .at(self.pointer(index, "spec")))
            }
        }
    }

    /// The problem of the first refused probe outside a pattern. A probe outside a pattern must be planted or pending; some matches of a
    /// pattern may be refused.
    fn refused(&self, statuses: &[ProbeStatus]) -> Option<Problem> {
        let refused: BTreeMap<&str, &ProbeStatus> = statuses
            .iter()
            .filter(|status| status.summary.state == ProbeState::Refused)
            .map(|status| (status.summary.probe.as_str(), status))
            .collect();
        if refused.is_empty() {
            return None;
        }
        let mut configs = self.configs.iter().enumerate();
        configs.find_map(|(index, config)| {
            if stands_for_many(&config.at) {
                return None;
            }
            let spec = config.at.to_string();
            let status = refused.get(spec.as_str())?;
            let reason = status.summary.reason.clone().unwrap_or_default();
            let detail = format!("cannot probe `{spec}`: {reason}");
            Some(
                ProblemKind::CannotProbe
                    .with(detail)
                    .at(self.pointer(index, "spec")),
            )
        })
    }

    fn give_names(&self, statuses: &[ProbeStatus], names: &mut Names) {
        let mut alike: BTreeMap<&str, VecDeque<ProbeId>> = BTreeMap::new();
        for status in statuses {
            let ids = alike.entry(status.summary.probe.as_str()).or_default();
            ids.push_back(status.id);
        }
        for (config, name) in self.configs.iter().zip(&self.names) {
            if stands_for_many(&config.at) {
                continue;
            }
            let spec = config.at.to_string();
            let found = alike.get_mut(spec.as_str()).and_then(VecDeque::pop_front);
            if let (Some(id), Some(name)) = (found, name) {
                names.give(id, name.clone());
            }
        }
    }

    fn cannot_register(&self, error: &RegisterError) -> Problem {
        match error {
            RegisterError::Resolve(error) => {
                let problem = ProblemKind::CannotProbe
                    .with(error.to_string())
                    .help(error.help());
                let mut configs = self.configs.iter();
                match configs.position(|config| config.at.to_string() == error.spec) {
                    Some(index) => problem.at(self.pointer(index, "spec")),
                    None => problem,
                }
            }
            RegisterError::Arm(error) => ProblemKind::CannotChange.with(chain(error)),
        }
    }
}
