//! Return sites in modules.

use std::sync::Arc;

use address::Gva;
use events::{ProbeId, ProbeState};
use introspect::btf::synthetic::Blob;
use introspect::{Btf, Module, ModuleRegion, PagingState, RegionKind, Signature};
use manifest::ProbeSpec;

use super::{DATA, PLAIN, ROOT, Rig, STACK, skipping, vcpu};
use crate::arguments::ArgumentSource;
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::modules::is_expected;
use crate::module::{LoadedModule, ModuleCode, ModuleSymbols};
use crate::registry::{Probe, Purpose};
use crate::resolve::synthetic::SyntheticKernel;
use crate::resolve::{MemoryOwner, Place, PlantTime, ResolveProblem, Via, in_module};

const MODULE: Gva = Gva(0x7000);
const IN_MODULE: ProbeId = ProbeId(99);
/// Behind the first instruction of the module's code.
const SITE: Gva = Gva(DATA + 1);

/// A kernel whose function is called by a module that is loaded.
struct Guest {
    rig: Rig,
    probed: Gva,
    unloads: Gva,
}

impl Guest {
    fn new() -> Self {
        let mut kernel = SyntheticKernel::new();
        let probed = kernel.function("probed", &PLAIN);
        let unloads = kernel.function("free_module", &PLAIN);
        let rig = Rig::new(&kernel, &["kretprobe:probed"]);
        rig.memory.put(DATA, &PLAIN);
        let text = ModuleRegion {
            range: Gva(DATA)..Gva(DATA + 0x1000),
            kind: RegionKind::Text,
        };
        let module = Module::with_regions(MODULE, "m", vec![text]);
        let paging = PagingState::four_level(ROOT);
        let module = LoadedModule::new(module, &rig.engine.running.planter, &paging);
        rig.engine
            .running
            .modules
            .keep(Arc::new(module))
            .expect("room");
        // No kernel without types resolves it.
        let spec = "kprobe:m:f".parse::<ProbeSpec>().expect("a probe");
        let probe = Probe::new(IN_MODULE, "kprobe:m:f".into(), Purpose::Count, None, true);
        let mut probes = rig.engine.probes.list.load().as_ref().clone();
        probes.push(Arc::new(probe.awaiting(spec)));
        rig.engine.probes.list.store(Arc::new(probes));
        let added = rig.engine.probes.list.load().last().cloned();
        rig.engine.probes.count_interest(&added.expect("pushed"));
        rig.engine.armer.reconcile(&rig.paused).expect("armed");
        Self {
            rig,
            probed,
            unloads,
        }
    }

    fn reach(&self, at: Gva, rdi: u64) {
        let mut vcpu = vcpu(at);
        vcpu.regs.rdi = rdi;
        let engine = &self.rig.engine;
        let outcome = engine.hits.on_hit(&mut vcpu, at).expect("handled");
        if outcome == HitOutcome::NeedsPause {
            let run = |_: &mut _, _: text::To<'_>| panic!("nothing to step");
            engine
                .paused_hits
                .on_paused_hit(&mut vcpu, &self.rig.paused, at, run)
                .expect("handled");
        }
    }

    /// The module calls the function, which has not returned yet.
    fn call(&self) {
        self.rig.memory.put(STACK, &SITE.0.to_le_bytes());
        self.reach(self.probed, 0);
    }

    fn remove_module_probe(&self) {
        let removed = self.rig.engine.unregister(&self.rig.paused, &[IN_MODULE]);
        assert_eq!(removed.expect("removed"), 1);
    }

    fn is_planted(&self) -> bool {
        self.rig.byte(SITE.0) != PLAIN[1]
    }
}

#[test]
fn return_site_leaves_the_module_that_is_unloaded_behind_its_last_probe() {
    let guest = Guest::new();
    guest.call();
    assert!(guest.is_planted());
    guest.remove_module_probe();
    assert!(guest.is_planted(), "a call is in flight");
    guest.reach(guest.unloads, MODULE.0);
    assert!(!guest.is_planted(), "its memory is another's");
    let probe = guest.rig.probe(0);
    let missed = probe.missed.get("return-site").copied();
    assert_eq!((probe.hits, probe.in_flight, missed), (1, Some(0), Some(1)));
    assert!(!guest.rig.engine.probes.watches_modules());
}

#[test]
fn return_site_leaves_the_module_although_an_injection_skips_the_function_that_frees_it() {
    let guest = Guest::new();
    let (engine, paused) = (&guest.rig.engine, &guest.rig.paused);
    engine
        .register(paused, &[skipping("kprobe:free_module")])
        .expect("registered");
    guest.call();
    assert!(guest.is_planted());
    guest.reach(guest.unloads, MODULE.0);
    assert!(!guest.is_planted());
}

#[test]
fn watch_of_modules_ends_with_the_last_probe_if_no_call_returns_to_one() {
    let guest = Guest::new();
    let is_watched = || guest.rig.seen(guest.unloads) != PLAIN[0];
    assert!(is_watched());
    guest.remove_module_probe();
    assert!(!is_watched());
}

#[test]
fn return_site_in_a_module_that_goes_while_the_probe_stays_is_forgotten_with_its_calls() {
    let guest = Guest::new();
    guest.call();
    guest.reach(guest.unloads, MODULE.0);
    assert!(!guest.is_planted());
    let probe = guest.rig.probe(0);
    assert_eq!((probe.hits, probe.in_flight), (1, Some(0)));
    assert_eq!(probe.missed.get("return-site"), Some(&1));
}

#[test]
fn probe_in_a_module_that_goes_keeps_no_types() {
    let guest = Guest::new();
    let mut blob = Blob::new();
    blob.function("f", 0, &[]);
    let types = Btf::parse(blob.finish()).expect("types");
    let signature = Signature::of_function(&types, "f").expect("typed");
    let probe = guest.rig.engine.probes.list.load().last().cloned();
    let probe = probe.expect("in the module");
    probe.set_signature(Some(Arc::new(signature)));
    probe.set_place(Some(Place {
        ip: Gva(DATA),
        symbol: "f+0x0 [m]".into(),
        via: Via::Plant {
            at: Gva(DATA),
            len: 1,
        },
        when: PlantTime::TextPresent,
        init: false,
        owner: MemoryOwner::Module(MODULE),
        arguments: ArgumentSource::default(),
    }));
    guest.reach(guest.unloads, MODULE.0);
    assert!(probe.place().is_none() && probe.signature().is_none());
}

#[test]
fn probe_that_was_in_one_build_is_refused_in_another() {
    let other_build = ResolveProblem::OtherBuild {
        module: "m".to_owned(),
        wanted: "00ab".to_owned(),
        build_id: Some("00ac".to_owned()),
    };
    let init_is_gone = ResolveProblem::NotInModule {
        name: "f".to_owned(),
        module: "m".to_owned(),
    };
    let expected = |spec: &str, state, problem: &ResolveProblem| {
        let probe = Probe::new(IN_MODULE, spec.into(), Purpose::Count, None, true);
        let probe = probe.awaiting(spec.parse().expect("a probe"));
        probe.status.set_state(state, None);
        is_expected(&probe, problem)
    };
    let gone = ProbeState::Gone;
    assert!(expected("kprobe:m:f", gone, &init_is_gone));
    assert!(!expected("kprobe:m:f", gone, &other_build));
    assert!(!expected("kprobe:m:f", ProbeState::Pending, &init_is_gone));
    // Data does not go with the init function.
    assert!(!expected("watch:m:f:4", gone, &init_is_gone));
}

#[test]
fn probe_of_another_build_is_refused_with_both_builds() {
    let rig = Rig::new(&SyntheticKernel::new(), &[]);
    let module = Module::with_regions(MODULE, "m", Vec::new());
    let planter = &rig.engine.running.planter;
    let module = &LoadedModule::new(module, planter, &PagingState::four_level(ROOT));
    let code = ModuleCode { module, planter };
    let problem = |spec: &str| {
        let spec: ProbeSpec = spec.parse().expect("a probe");
        let found = in_module(module, &code, &ModuleSymbols::new(module.module()), &spec);
        found.expect_err("no such function")
    };
    let any = problem("kprobe:m:f");
    assert!(matches!(any, ResolveProblem::NotInModule { .. }), "{any}");
    assert_eq!(
        problem("kprobe:m@00ab:f").to_string(),
        "the build-id of the module `m` is not known, and that of the probe begins with 00ab"
    );
}
