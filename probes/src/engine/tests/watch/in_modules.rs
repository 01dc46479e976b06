//! Watchpoints at data of modules.

use std::sync::Arc;

use address::Gva;
use events::{ProbeId, ProbeState};
use introspect::{Module, ModuleRegion, PagingState, RegionKind, Symbol};
use manifest::ProbeSpec;

use super::{MOV, Watched};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::tests::{DATA, PLAIN, ROOT, Rig, vcpu};
use crate::module::{LoadedModule, ModuleCode, ModuleSymbols};
use crate::registry::{Probe, Purpose};
use crate::resolve::synthetic::SyntheticKernel;
use crate::resolve::{Place, ResolveProblem, in_module, words_in_module};

const MODULE: Gva = Gva(0x7000);
const TEXT: u64 = DATA - 0x1000;
const INIT: u64 = DATA + 0x2000;
/// Behind the memory of the guest.
const NOT_THERE: u64 = 0x7fff_0000;

/// A module with a page of code, two of data, one of init data, and data without memory.
fn module() -> Module {
    let region = |start, bytes, kind| ModuleRegion {
        range: Gva(start)..Gva(start + bytes),
        kind,
    };
    let symbol = |address, size, kind, name: &str| Symbol {
        address: Gva(address),
        size,
        kind,
        name: name.to_owned(),
        module: Some("m".into()),
    };
    let regions = vec![
        region(TEXT, 0x1000, RegionKind::Text),
        region(DATA, 0x2000, RegionKind::Data),
        region(INIT, 0x1000, RegionKind::InitData),
        region(NOT_THERE, 0x1000, RegionKind::Data),
    ];
    let symbols = vec![
        symbol(TEXT, 0x10, 't', "f"),
        symbol(DATA, 8, 'd', "first"),
        symbol(DATA + 8, 8, 'd', "twice"),
        symbol(DATA + 0x10, 8, 'd', "twice"),
        symbol(DATA + 0xffc, 8, 'd', "across"),
        symbol(INIT, 8, 'd', "early"),
        symbol(NOT_THERE, 8, 'd', "far"),
    ];
    Module::with_regions(MODULE, "m", regions).with_symbols(symbols)
}

fn resolved(rig: &Rig, spec: &str) -> Result<Place, ResolveProblem> {
    let planter = &rig.engine.running.planter;
    let module = &LoadedModule::new(module(), planter, &PagingState::four_level(ROOT));
    let code = ModuleCode { module, planter };
    let spec: ProbeSpec = spec.parse().expect("a probe");
    let found = in_module(module, &code, &ModuleSymbols::new(module.module()), &spec)?;
    let [site] = &found[..] else {
        panic!("{found:?}");
    };
    Ok(site.place.clone().expect("a place"))
}

/// A guest with a loaded module, and a watchpoint at its data.
struct Guest {
    watched: Watched,
    probe: Arc<Probe>,
    /// The kernel's function that frees a module.
    unloads: Gva,
}

impl Guest {
    fn new(spec: &str) -> Self {
        let mut kernel = SyntheticKernel::new();
        kernel.function("writer", &MOV);
        kernel.function("do_init_module", &PLAIN);
        kernel.function("free_module", &PLAIN);
        Self::with(spec, kernel)
    }

    fn with(spec: &str, kernel: SyntheticKernel) -> Self {
        let rig = Rig::new(&kernel, &[]);
        let symbols = rig.engine.running.kernel.symbols();
        let at = symbols.address_of("writer").expect("a function");
        let unloads = symbols.address_of("free_module").unwrap_or_default();
        let engine = &rig.engine;
        let paging = PagingState::four_level(ROOT);
        engine.running.modules.paging.store(Some(Arc::new(paging)));
        let module = LoadedModule::new(module(), &engine.running.planter, &paging);
        let kept = engine.running.modules.keep(Arc::new(module));
        kept.expect("room");
        let place = resolved(&rig, spec).expect("resolved");
        let parsed: ProbeSpec = spec.parse().expect("a probe");
        let probe = Probe::new(ProbeId(99), spec.into(), Purpose::Trace, None, true);
        let probe = Arc::new(probe.awaiting(parsed));
        probe.set_place(Some(place));
        let mut probes = engine.probes.list.load().as_ref().clone();
        probes.push(Arc::clone(&probe));
        engine.probes.list.store(Arc::new(probes));
        engine.probes.count_interest(&probe);
        engine.armer.reconcile(&rig.paused).expect("armed");
        let watched = Watched {
            rig,
            at,
            data: DATA,
        };
        Self {
            watched,
            probe,
            unloads,
        }
    }

    /// The kernel frees the module.
    fn unload(&self) {
        let rig = &self.watched.rig;
        let mut vcpu = vcpu(self.unloads);
        vcpu.regs.rdi = MODULE.0;
        let outcome = rig.engine.hits.on_hit(&mut vcpu, self.unloads);
        assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
        let run = |_: &mut _, _: text::To<'_>| panic!("nothing to step");
        let hits = &rig.engine.paused_hits;
        let handled = hits.on_paused_hit(&mut vcpu, &rig.paused, self.unloads, run);
        handled.expect("handled");
    }
}

#[test]
fn write_to_a_module_s_data_is_a_hit_until_the_module_is_unloaded() {
    let guest = Guest::new("watch:m:first+4:4");
    let Guest { watched, probe, .. } = &guest;
    assert_eq!(probe.status.state(), ProbeState::Armed);
    assert_eq!(watched.protected(), [DATA]);
    let outcome = watched.exit(&mut watched.vcpu(DATA, 0x7_0000_0006));
    assert_eq!(outcome, HitOutcome::Resume);
    assert_eq!(watched.writes(), [(0, 7)]);
    assert_eq!(watched.rig.word(DATA), 0x7_0000_0006);
    guest.unload();
    assert_eq!(watched.protected(), [] as [u64; 0]);
    assert_eq!(probe.status.state(), ProbeState::Gone);
    assert_eq!(watched.counts(0), (1, 1));
}

#[test]
fn bytes_on_two_pages_are_watched() {
    let guest = Guest::new("watch:m:across:8");
    assert_eq!(guest.watched.protected(), [DATA, DATA + 0x1000]);
    guest
        .watched
        .exit(&mut guest.watched.vcpu(DATA + 0xffc, 0x9_0000_0008));
    assert_eq!(guest.watched.writes(), [(0, 8), (0, 9)]);
}

#[test]
fn data_without_memory_is_refused_and_harms_no_other_probe() {
    let guest = Guest::new("watch:m:far:8");
    assert_eq!(guest.probe.status.state(), ProbeState::Refused);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    // Another load may be watched: this one counts.
    assert_eq!(
        guest.watched.rig.probe(0).missed.get("unprotected"),
        Some(&1)
    );
    guest.watched.register("kprobe:writer");
    assert_eq!(guest.watched.rig.states().last(), Some(&ProbeState::Armed));
}

#[test]
fn data_that_does_not_stay_and_code_are_refused_with_the_reason() {
    let rig = Rig::new(&SyntheticKernel::new(), &[]);
    for (spec, expected) in [
        ("watch:m:early:8", "the kernel frees it after boot"),
        ("watch:m:f:8", "the module m has no variable `f`"),
        ("watch:m:furst:8", "the module m has no variable `furst`"),
        (
            "watch:m:twice:8",
            "the module m has several variables called `twice`",
        ),
        ("watch:m:first+4:8", "its bytes are not all in `first`"),
        (
            "watch:m@00ab:first:8",
            "the build-id of the module `m` is not known",
        ),
    ] {
        let error = resolved(&rig, spec).expect_err(spec).to_string();
        assert!(error.contains(expected), "{spec}: {error}");
    }
}

#[test]
fn watched_data_of_a_module_that_is_not_loaded_counts_as_words() {
    let words = |spec: &str| words_in_module(&spec.parse().expect("a probe"));
    let specs = ["watch:m:x:1", "watch:m:x:8", "watch:m:x:4096", "kprobe:m:f"];
    assert_eq!(specs.map(words), [2, 2, 513, 0]);
}

#[test]
fn watchpoint_stays_while_its_module_is_going_and_others_are_added() {
    // The guest's list of modules has no module any more.
    let guest = Guest::new("watch:m:first:8");
    let Guest { watched, probe, .. } = &guest;
    watched.rig.engine.module_watch.look_for_modules();
    let reconciled = watched.rig.engine.armer.reconcile(&watched.rig.paused);
    reconciled.expect("armed");
    assert_eq!(probe.status.state(), ProbeState::Armed);
    assert_eq!(watched.protected(), [DATA]);
    guest.unload();
    assert_eq!(watched.protected(), [] as [u64; 0]);
}

#[test]
fn data_of_modules_is_not_watched_if_hyprobe_cannot_see_them_go() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("writer", &MOV);
    let guest = Guest::with("watch:m:first:8", kernel);
    assert_eq!(guest.probe.status.state(), ProbeState::Refused);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
}
