//! A fake machine with a list of statuses in place of an engine, for tests and fuzz targets of the control server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use address::{Gpa, Gva};
use events::{Hex, ProbeId, ProbeState, ProbeStatus, ProbeSummary};
use hyprobe_control::{Facts, Registration, Target};
use inspect::stacks::StackReader;
use introspect::orc::NoOrc;
use introspect::{Btf, SymbolTable, SymbolTableBuilder};
use manifest::{Location, ProbeAction, ProbeConfig};
use probes::{ArmError, At, NoStacks, ReadError, ResolveError, ResolveProblem};
use text::{GuestError, GuestMemory, Paused};
use vmm::VcpuState;

/// The symbols that `many_*` matches. The others are `one`, `two`, and `refused`, at which no probe can be planted.
pub const MANY: [&str; 3] = ["many_a", "many_b", "many_c"];
/// The physical address of readable memory.
pub const MEMORY_AT: u64 = 0x1000;
/// The number of bytes of memory.
pub const RAM_BYTES: u64 = 64 << 20;

/// The fake machine.
#[derive(Debug)]
pub struct Straw {
    facts: Facts,
    symbols: SymbolTable,
    probes: Mutex<Vec<ProbeStatus>>,
    next: AtomicU64,
    armed: AtomicBool,
    optimising: AtomicBool,
    /// Whether the run ends.
    pub ending: AtomicBool,
    /// Whether the kernel's address is known.
    pub located: AtomicBool,
    /// Pauses in force.
    pub paused: AtomicUsize,
    /// The next looks at vCPUs that find a vCPU in a detour.
    pub looks_in_detours: AtomicUsize,
    /// Duration of each change.
    pub slow: Mutex<Duration>,
}

impl Default for Straw {
    fn default() -> Self {
        let mut symbols = SymbolTableBuilder::new();
        for (at, name) in (0..).zip(["one", "two", "many_a", "many_b", "many_c", "refused"]) {
            symbols.push(Gva(0xffff_ffff_8100_0000 + at * 0x10), 'T', name);
        }
        Self {
            facts: Facts {
                accel: "straw".to_owned(),
                cpus: 2,
                memory_bytes: 1 << 20,
                kernel: None,
                build_id: None,
            },
            symbols: symbols.build(),
            probes: Mutex::default(),
            next: AtomicU64::new(1),
            armed: AtomicBool::new(true),
            optimising: AtomicBool::new(true),
            ending: AtomicBool::new(false),
            located: AtomicBool::new(true),
            paused: AtomicUsize::new(0),
            looks_in_detours: AtomicUsize::new(0),
            slow: Mutex::default(),
        }
    }
}

struct Pause<'s>(&'s Straw);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.paused.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Paused for Pause<'_> {
    fn vcpus(&self) -> usize {
        unreachable!("only an engine asks for it")
    }

    fn set_read_only(&self, _: &[vmm::PageRange]) -> Result<(), GuestError> {
        Ok(())
    }

    fn protect_pages(&self, _: &BTreeMap<Gpa, vmm::Protection>) -> Result<(), GuestError> {
        unreachable!("only an engine asks for it")
    }

    fn lift_protection(&self, _: bool) -> Result<(), GuestError> {
        unreachable!("only an engine asks for it")
    }

    fn map_detour(&self, _: vmm::DetourSize) -> Result<(Gpa, Arc<dyn GuestMemory>), GuestError> {
        unreachable!("only an engine asks for it")
    }

    fn vcpu_rips(&self) -> Vec<Gva> {
        unreachable!("only an engine asks for it")
    }

    fn vcpu_states(&self) -> Result<Vec<vmm::VcpuState>, GuestError> {
        Ok(vec![vmm::VcpuState::default(); 2])
    }

    fn is_in_nmi(&self) -> bool {
        unreachable!("only an engine asks for it")
    }

    fn set_breakpoints(&self, _: vmm::HardwareBreakpoints) {}
}

impl Straw {
    /// The statuses of the probes.
    ///
    /// # Panics
    ///
    /// If a thread has panicked with the statuses.
    pub fn probes(&self) -> MutexGuard<'_, Vec<ProbeStatus>> {
        self.probes.lock().expect("nobody panics with it")
    }

    fn status(&self, new: &ProbeConfig, name: &str, state: ProbeState) -> ProbeStatus {
        ProbeStatus {
            id: ProbeId::from(self.next.fetch_add(1, Ordering::SeqCst)),
            name: None,
            kind: new.at.kind,
            symbol: Some(format!("{name}+0x0").into()),
            module: None,
            enabled: new.enabled,
            action: Some(ProbeAction::Trace),
            aggregate: new.action.aggregate().map(ToString::to_string),
            maxactive: None,
            summary: ProbeSummary {
                probe: format!("{}:{name}", new.at.kind.keyword()),
                ip: Some(Hex(0xffff_ffff_8100_0000)),
                hits: 0,
                missed: BTreeMap::new(),
                tier: None,
                exits: 0,
                returns: None,
                in_flight: None,
                state,
                reason: (state == ProbeState::Refused).then(|| "it is made of straw".to_owned()),
                unoptimised: None,
                filter: new.filter.as_ref().map(ToString::to_string),
                result: None,
            },
        }
    }

    fn register(&self, new: &[ProbeConfig]) -> Vec<ProbeId> {
        std::thread::sleep(*self.slow.lock().expect("nobody panics with it"));
        let mut added = Vec::new();
        for probe in new {
            match &probe.at.location {
                Location::Glob(_) => {
                    added.extend(MANY.map(|name| self.status(probe, name, ProbeState::Armed)))
                }
                Location::Symbol { name, .. } if name == "refused" => {
                    added.push(self.status(probe, name, ProbeState::Refused));
                }
                Location::Symbol { name, .. } if self.symbols.lookup(name).is_some() => {
                    added.push(self.status(probe, name, ProbeState::Armed));
                }
                Location::Address(address) => {
                    let name = address.to_string();
                    added.push(self.status(probe, &name, ProbeState::Armed));
                }
                other => panic!("{other:?} has been checked"),
            }
        }
        let ids = added.iter().map(|status| status.id).collect();
        self.probes().extend(added);
        ids
    }
}

impl Target for Straw {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn pause(&self) -> Box<dyn Paused + '_> {
        let lasting = self.paused.fetch_add(1, Ordering::SeqCst);
        assert_eq!(lasting, 0, "one pause at a time");
        Box::new(Pause(self))
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    fn prepare(&self, new: &[ProbeConfig]) -> Result<Registration<'_>, ResolveError> {
        let lost = new.iter().find(|probe| match &probe.at.location {
            Location::Symbol { name, .. } => self.symbols.lookup(name).is_none(),
            Location::Glob(_) | Location::Address(_) | Location::Program(_) => false,
            Location::Line { .. } | Location::Inlined(_) | Location::Data(_) => true,
        });
        if let Some(probe) = lost {
            return Err(ResolveError {
                spec: probe.at.to_string(),
                problem: ResolveProblem::NoSymbol {
                    name: "x".to_owned(),
                    near: vec!["one".to_owned()],
                },
            });
        }
        let new = new.to_vec();
        Ok(Box::new(move |_| Ok(self.register(&new))))
    }

    fn unregister(&self, _: &dyn Paused, ids: &[ProbeId]) -> Result<usize, ArmError> {
        std::thread::sleep(*self.slow.lock().expect("nobody panics with it"));
        let mut probes = self.probes();
        let before = probes.len();
        probes.retain(|status| !ids.contains(&status.id));
        Ok(before - probes.len())
    }

    fn set_enabled(&self, _: &dyn Paused, id: ProbeId, enabled: bool) -> Result<bool, ArmError> {
        let mut probes = self.probes();
        let found = probes.iter_mut().find(|status| status.id == id);
        Ok(found.map(|status| status.enabled = enabled).is_some())
    }

    fn set_armed(&self, _: &dyn Paused, armed: bool) -> Result<(), ArmError> {
        self.armed.store(armed, Ordering::SeqCst);
        Ok(())
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    fn prepare_optimising(&self) {}

    fn set_optimising(&self, _: &dyn Paused, wanted: bool) -> Result<(), ArmError> {
        self.optimising.store(wanted, Ordering::SeqCst);
        Ok(())
    }

    fn is_optimising(&self) -> bool {
        self.optimising.load(Ordering::SeqCst)
    }

    fn ids(&self) -> Vec<ProbeId> {
        self.probes().iter().map(|status| status.id).collect()
    }

    fn statuses_among(&self, ids: &BTreeSet<ProbeId>, most: usize) -> Vec<ProbeStatus> {
        let probes = self.probes();
        let among = probes.iter().filter(|status| ids.contains(&status.id));
        among.take(most).cloned().collect()
    }

    fn statuses(&self) -> Vec<ProbeStatus> {
        self.probes().clone()
    }

    fn statuses_of(&self, id: ProbeId) -> Vec<ProbeStatus> {
        let probes = self.probes();
        probes
            .iter()
            .filter(|status| status.id == id)
            .cloned()
            .collect()
    }

    fn read(&self, at: At, buf: &mut [u8]) -> Result<(), ReadError> {
        match at {
            At::Physical(gpa) if (MEMORY_AT..MEMORY_AT + RAM_BYTES).contains(&gpa.0) => {
                buf.fill(0x5a);
                Ok(())
            }
            At::Physical(at) => Err(ReadError::Physical { at, len: buf.len() }),
            At::Virtual(at) => Err(ReadError::TooEarly { at }),
        }
    }

    fn ram(&self) -> Vec<std::ops::Range<Gpa>> {
        vec![Gpa(MEMORY_AT)..Gpa(MEMORY_AT + RAM_BYTES)]
    }

    fn translate(&self, _: Gva) -> Option<Gpa> {
        None
    }

    fn is_in_detour(&self, _: Gva) -> bool {
        let count = |left: usize| left.checked_sub(1);
        let order = Ordering::SeqCst;
        self.looks_in_detours
            .fetch_update(order, order, count)
            .is_ok()
    }

    fn stack_reader(&self, _: &VcpuState) -> Result<StackReader<'_>, NoStacks> {
        let label = "__start_orc_unwind";
        Err(NoOrc::NoLabel { label }.into())
    }

    fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    fn types(&self) -> Option<&Btf> {
        None
    }

    fn slide(&self) -> Option<i64> {
        self.located.load(Ordering::SeqCst).then_some(0x100)
    }

    fn clock_ns(&self) -> u64 {
        5
    }
}
