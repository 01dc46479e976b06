//! Instructions that the hardware executes in place, and that raise exceptions: the guest finds the frames that it would
//! find without probes, and fault-handlers are told.

use std::sync::{Arc, Mutex};

use probes::{
    Action, FaultOutcome, Handler, HitContext, InstructionFault, NewProbe, ProbeSpec, Tier,
};

use crate::guest::{Guest, kernel, plant_bytes};

const ROUNDS: u64 = 4;

/// The functions whose first instruction faults, and with what.
const FAULTING: [(&str, u8); 3] = [("rs_div", 0), ("rs_rdmsr", 13), ("rs_lods", 14)];

#[test]
fn frames_are_those_of_an_unprobed_guest() {
    for plant in plant_bytes() {
        let ran = Guest::new(&format!("run=raise={ROUNDS}"))
            .probes(["kprobe:rs_*"])
            .plant(plant)
            .run();
        ran.assert_good();
        for (function, _) in FAULTING {
            let probe = ran.probe(&format!("kprobe:{function}"));
            assert_eq!((probe.hits, probe.exits), (ROUNDS, 2 * ROUNDS), "{probe:?}");
            let behind = ran.probe(&format!("kprobe:{function}_next"));
            assert_eq!((behind.hits, behind.exits), (ROUNDS, ROUNDS), "{behind:?}");
        }
    }
}

/// The handler of #UD finds the guest's own instruction, and each execution is told all the same.
#[test]
fn an_instruction_made_to_fault_is_what_its_handler_reads() {
    for plant in plant_bytes() {
        let ran = Guest::new(&format!("run=ud={ROUNDS}"))
            .probes(["kprobe:rs_ud"])
            .plant(plant)
            .run();
        ran.assert_good();
        assert_eq!(ran.probe("kprobe:rs_ud").hits, ROUNDS);
    }
}

#[test]
fn a_system_call_from_ring_0_shows_no_trap_flag() {
    for plant in plant_bytes() {
        let ran = Guest::new(&format!("run=syscall0={ROUNDS}"))
            .probes(["kprobe:rs_syscall", "kprobe:rs_entry"])
            .plant(plant)
            .run();
        ran.assert_good();
        let call = ran.probe("kprobe:rs_syscall");
        assert_eq!((call.hits, call.tier), (ROUNDS, Some(Tier::Stepped)));
        // Its stop was a plant of its own.
        assert_eq!(ran.probe("kprobe:rs_entry").hits, ROUNDS);
    }
}

/// Writes down what it is told.
#[derive(Debug, Default)]
struct Told {
    faults: Mutex<Vec<(InstructionFault, u64, u64)>>,
    swallows: bool,
}

impl Handler for Told {
    fn fault(&self, hit: &mut HitContext<'_>, fault: InstructionFault) -> FaultOutcome {
        let (rip, rcx) = (hit.regs().rip, hit.regs().rcx);
        let mut faults = self.faults.lock().expect("lock");
        faults.push((fault, rip, rcx));
        if !self.swallows {
            return FaultOutcome::ToGuest;
        }
        hit.regs_mut().rip = address_of("rs_div_next");
        FaultOutcome::Swallowed
    }
}

fn address_of(name: &str) -> u64 {
    kernel().symbols().address_of(name).expect(name).0
}

fn run_with(told: &Arc<Told>, functions: &[&str]) -> crate::guest::Ran {
    let guest = Guest::new(&format!("run=raise={ROUNDS}"))
        .probes(["kprobe:rs_entry"])
        .prepare();
    let probes: Vec<NewProbe> = functions
        .iter()
        .map(|function| {
            let spec: ProbeSpec = format!("kprobe:{function}").parse().expect("a probe");
            NewProbe {
                action: Action::Handle(Arc::clone(told) as Arc<dyn Handler>),
                ..NewProbe::from(spec)
            }
        })
        .collect();
    let control = guest.session.control();
    guest
        .session
        .engine()
        .register(&control.pause_all(), &probes)
        .expect("registered");
    guest.run()
}

#[test]
fn fault_handlers_are_told_of_every_exception() {
    let told = Arc::new(Told::default());
    let ran = run_with(&told, &FAULTING.map(|(function, _)| function));
    ran.assert_good();
    let faults = told.faults.lock().expect("lock");
    assert_eq!(faults.len() as u64, 3 * ROUNDS);
    for (i, (fault, rip, rcx)) in faults.iter().enumerate() {
        let (function, vector) = FAULTING[i % 3];
        assert_eq!((fault.vector, *rip), (vector, address_of(function)));
        match vector {
            14 => {
                // Six bytes lie before the page that is not there.
                assert_eq!((fault.address.0 % 0x1000, *rcx), (0, 10));
                assert_eq!(
                    fault.error_code & !0x10,
                    0,
                    "a read of a page that is not there"
                );
            }
            _ => assert_eq!((fault.address.0, fault.error_code), (0, 0)),
        }
    }
}

#[test]
fn a_swallowed_exception_is_none_to_the_guest() {
    let told = Arc::new(Told {
        swallows: true,
        ..Told::default()
    });
    let ran = run_with(&told, &["rs_div"]);
    assert_eq!(ran.outcome.failures, ["div FAIL nothing was raised"]);
    assert_eq!(told.faults.lock().expect("lock").len(), 1);
}
