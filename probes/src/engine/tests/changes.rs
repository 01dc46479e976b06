//! Probes that come and go: each change looks only at the places that it touches, and must leave what looking at all
//! of them would.

use events::ProbeId;
use proptest::prelude::*;

use address::Gva;
use manifest::{ProbeConfig, ProbeSpec};
use text::PlantByte;

use super::{PLAIN, Rig, gpa};
use crate::engine::RegisterError;
use crate::resolve::PROBES_MAX;
use crate::resolve::synthetic::SyntheticKernel;
use crate::{ResolveError, ResolveProblem};

const JUMP: [u8; 5] = [0xe9, 0, 0x10, 0, 0];
/// Offsets of PLAIN's instructions.
const BOUNDARIES: [u64; 4] = [0, 1, 4, 5];
const FUNCTIONS: usize = 5;

#[derive(Clone, Debug)]
enum Op {
    Register { places: Vec<usize>, enabled: bool },
    Unregister(usize),
    Enable(usize, bool),
    Arm(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let place = 0..FUNCTIONS * (BOUNDARIES.len() + 1);
    prop_oneof![
        4 => (prop::collection::vec(place, 1..4), any::<bool>())
            .prop_map(|(places, enabled)| Op::Register { places, enabled }),
        3 => any::<usize>().prop_map(Op::Unregister),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(which, on)| Op::Enable(which, on)),
        1 => any::<bool>().prop_map(Op::Arm),
    ]
}

/// Every function has four plain instructions, and a jump label that only a debug register can watch.
fn kernel() -> (SyntheticKernel, Vec<Gva>) {
    let mut kernel = SyntheticKernel::new();
    let (mut plain, mut labels) = (Vec::new(), Vec::new());
    for n in 0..FUNCTIONS {
        plain.push(kernel.function(&format!("plain{n}"), &PLAIN));
        labels.push(kernel.function(&format!("keyed{n}"), &JUMP));
    }
    kernel.jump_labels(&labels);
    (kernel, plain)
}

fn spec(place: usize) -> ProbeSpec {
    let (function, which) = (place % FUNCTIONS, place / FUNCTIONS);
    match BOUNDARIES.get(which) {
        Some(offset) => format!("kprobe:plain{function}+{offset:#x}"),
        None => format!("kprobe:keyed{function}"),
    }
    .parse()
    .expect("a probe")
}

proptest! {
    #[test]
    fn plants_do_not_depend_on_the_order_of_changes(ops in prop::collection::vec(op(), 1..40)) {
        let (kernel, plain) = kernel();
        let rig = Rig::new(&kernel, &[]);
        let unprobed = rig.memory.bytes();
        // What there should be, in the order of registration.
        let mut model: Vec<(ProbeId, usize, bool)> = Vec::new();
        let mut armed = true;
        for op in ops {
            match op {
                Op::Register { places, enabled } => {
                    let new: Vec<_> = places
                        .iter()
                        .map(|place| ProbeConfig { enabled, ..ProbeConfig::from(spec(*place)) })
                        .collect();
                    let ids = rig.engine.register(&rig.paused, &new).expect("registered");
                    model.extend(ids.into_iter().zip(places).map(|(id, place)| (id, place, enabled)));
                }
                Op::Unregister(which) if !model.is_empty() => {
                    let (id, ..) = model.remove(which % model.len());
                    prop_assert_eq!(rig.engine.unregister(&rig.paused, &[id]).expect("removed"), 1);
                }
                Op::Enable(which, enabled) if !model.is_empty() => {
                    let index = which % model.len();
                    model[index].2 = enabled;
                    rig.engine.set_enabled(&rig.paused, model[index].0, enabled).expect("set");
                }
                Op::Arm(on) => {
                    armed = on;
                    rig.engine.set_armed(&rig.paused, on).expect("set");
                }
                Op::Unregister(_) | Op::Enable(..) => (),
            }
            let mut expected = unprobed.clone();
            for (_, place, _) in model.iter().filter(|(.., enabled)| armed && *enabled) {
                if let Some(offset) = BOUNDARIES.get(place / FUNCTIONS) {
                    let at = gpa(plain[place % FUNCTIONS].wrapping_add(*offset));
                    expected[usize::try_from(at).expect("small")] = PlantByte::Port.value();
                }
            }
            prop_assert!(rig.memory.bytes() == expected);
            let table = rig.engine.hits.plants.table.load();
            for plant in table.plants() {
                let ids: Vec<_> = plant.probes.iter().map(|(probe, _)| probe.id).collect();
                prop_assert!(!ids.is_empty() && ids.is_sorted());
                let at = table.at_gpa(plant.spot.gpa).expect("by its address in memory, too");
                prop_assert!(std::sync::Arc::ptr_eq(at, plant));
            }
            let watched = rig.paused.breakpoints().into_iter().flatten().count();
            prop_assert!(watched <= 4 && (armed || watched == 0));
        }
        let ids: Vec<_> = model.iter().map(|(id, ..)| *id).collect();
        rig.engine.unregister(&rig.paused, &ids).expect("removed");
        prop_assert!(rig.memory.bytes() == unprobed);
        prop_assert_eq!(rig.engine.hits.plants.table.load().plants().count(), 0);
    }
}

#[test]
fn more_probes_than_an_engine_takes_are_refused_and_none_is_there() {
    let (kernel, _) = kernel();
    let rig = Rig::new(&kernel, &["kprobe:plain0"]);
    let count = |count: usize| vec![ProbeConfig::from(spec(1)); count];
    let error = rig
        .engine
        .register(&rig.paused, &count(PROBES_MAX))
        .expect_err("one too many");
    assert!(
        matches!(
            &error,
            RegisterError::Resolve(ResolveError {
                problem: ResolveProblem::TooManyProbes { .. },
                ..
            })
        ),
        "{error}"
    );
    assert_eq!(rig.engine.inventory().summaries().len(), 1);
    let ids = rig.engine.register(&rig.paused, &count(1)).expect("room");
    assert_eq!(ids.len(), 1);
}
