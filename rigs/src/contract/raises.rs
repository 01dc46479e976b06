//! Instructions that the hardware executes in place, and that raise exceptions: the guest finds the same frames as without probes, and
//! fault handlers are called.

use std::sync::{Arc, Mutex, PoisonError};

use probes::{FaultOutcome, Handler, HitContext, Kernel};
use text::InstructionFault;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Ran, new};
use super::handlers::handled;

pub(super) const CASES: [Case; 11] = [
    Case::new("raise", Plants::Each, &[1], frames),
    Case::new("intn", Plants::Each, &[1], |here| {
        let ran = in_place(here, "intn");
        assert_eq!(ran.hits("rs_int"), ROUNDS);
    }),
    Case::new("ud", Plants::Each, &[1], |here| {
        // The handler of #UD finds the guest's own instruction, and each execution is reported all the same.
        let ran = in_place(here, "ud");
        assert_eq!(ran.hits("rs_ud"), ROUNDS);
    }),
    Case::new("syscall0", Plants::Each, &[1], |here| {
        // The entry, where an instruction executed in place has to be stopped, has its own probe.
        let ran = in_place(here, "syscall0");
        assert_eq!(ran.hits("rs_syscall"), ROUNDS);
        assert_eq!(ran.hits("rs_entry"), ROUNDS);
    }),
    Case::new("lstar", Plants::Each, &[1], |here| {
        let ran = in_place(here, "lstar");
        assert_eq!(ran.hits("rs_wrmsr"), ROUNDS);
        // The exit of the write itself, without a plant in the way.
        let guest = here.guest(&format!("run=lstar={ROUNDS}"));
        guest.probes(["kprobe:fn_nop"]).run().assert_good();
    }),
    Case::new("outs", Plants::Each, &[1], |here| {
        // A KVM that emulates `outs` exits at the next plant, before executing the plant.
        for probes in [
            ["kprobe:pt_behind"].as_slice(),
            &["kprobe:pt_outs", "kprobe:pt_behind"],
        ] {
            let guest = here.guest(&format!("run=outs={ROUNDS}"));
            let ran = guest.without_jumps().probes(probes).run();
            ran.assert_good();
            for probe in &ran.summary.probes {
                assert_eq!(probe.hits, ROUNDS, "{}", probe.probe);
            }
        }
    }),
    Case::new("int1", Plants::Each, &[1], |here| {
        // A debug register is in use while the program runs.
        let ran = here
            .guest(&format!("run=int1={ROUNDS}"))
            .probes(["kprobe:st_patched"])
            .run();
        ran.assert_good();
        assert_eq!(ran.hits("st_patched"), 1);
    }),
    Case::new("own-steps", Plants::Nothing, &[1], |here| {
        here.guest("run=steps").with([]).run().assert_good();
    }),
    Case::new("steps", Plants::Each, &[1], |here| {
        let ran = here
            .guest(&format!("run=steps={ROUNDS}"))
            // The guest would step through the detours, too.
            .without_jumps()
            .probes(["kprobe:st_*"])
            .run();
        ran.assert_good();
        for step in 0..=12 {
            let step = format!("st_{step}");
            assert_eq!(ran.hits(&step), 2 * ROUNDS, "{step}");
        }
        assert_eq!(ran.hits("st_patched"), ROUNDS);
        // A debug register is in use in the first run of each round, and none in the second.
        let ran = here
            .guest(&format!("run=steps={ROUNDS}"))
            .probes(["kprobe:st_patched"])
            .run();
        ran.assert_good();
        assert_eq!(ran.hits("st_patched"), ROUNDS);
    }),
    Case::new("handler-raise", Plants::Each, &[1], every_exception),
    Case::new("handler-raise-swallowed", Plants::Each, &[1], swallowed),
];

const ROUNDS: u64 = 4;

/// The functions whose first instruction faults, and the fault's vector.
const FAULTING: [(&str, u8); 3] = [("rs_div", 0), ("rs_rdmsr", 13), ("rs_lods", 14)];

fn in_place(here: &Here<'_>, scenario: &str) -> Ran {
    let ran = here
        .guest(&format!("run={scenario}={ROUNDS}"))
        .probes(["kprobe:rs_*"])
        .run();
    ran.assert_good();
    ran
}

fn frames(here: &Here<'_>) {
    let ran = in_place(here, "raise");
    for (function, _) in FAULTING {
        let behind = format!("{function}_next");
        assert_eq!((ran.hits(function), ran.hits(&behind)), (ROUNDS, ROUNDS));
    }
}

/// Notes each fault given to the handler.
#[derive(Debug, Default)]
struct FaultRecorder {
    faults: Mutex<Vec<(InstructionFault, u64, u64)>>,
    /// If set, the address to continue at: the guest does not see the fault.
    swallows_to: Option<u64>,
}

impl FaultRecorder {
    fn faults(&self) -> Vec<(InstructionFault, u64, u64)> {
        let faults = self.faults.lock();
        faults.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Handler for FaultRecorder {
    fn fault(&self, hit: &mut HitContext<'_>, fault: InstructionFault) -> FaultOutcome {
        let (rip, rcx) = (hit.regs().rip, hit.regs().rcx);
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.push((fault, rip, rcx));
        match self.swallows_to {
            None => FaultOutcome::ToGuest,
            Some(rip) => {
                hit.regs_mut().rip = rip;
                FaultOutcome::Swallowed
            }
        }
    }
}

fn address_of(kernel: &Kernel, name: &str) -> u64 {
    kernel.symbols().address_of(name).expect(name).0
}

fn run_with(here: &Here<'_>, recorder: &Arc<FaultRecorder>, functions: &[&str]) -> Ran {
    let probes = functions
        .iter()
        .map(|function| handled(&format!("kprobe:{function}"), recorder.clone()));
    here.guest(&format!("run=raise={ROUNDS}"))
        .with([new("kprobe:rs_entry")].into_iter().chain(probes))
        .run()
}

fn every_exception(here: &Here<'_>) {
    let (kernel, recorder) = (here.kernel(), Arc::new(FaultRecorder::default()));
    let ran = run_with(here, &recorder, &FAULTING.map(|(function, _)| function));
    ran.assert_good();
    let faults = recorder.faults();
    assert_eq!(faults.len() as u64, 3 * ROUNDS);
    for (i, (fault, rip, rcx)) in faults.iter().enumerate() {
        let (function, vector) = FAULTING[i % 3];
        let at = address_of(&kernel, function);
        assert_eq!((fault.vector, *rip), (vector, at));
        match vector {
            14 => {
                // The instruction has read the six bytes before the absent page.
                assert_eq!((fault.address.0 % 0x1000, *rcx), (0, 10));
                assert_eq!(fault.error_code & !0x10, 0, "{fault:?}");
            }
            _ => assert_eq!((fault.address.0, fault.error_code), (0, 0)),
        }
    }
}

fn swallowed(here: &Here<'_>) {
    let recorder = Arc::new(FaultRecorder {
        swallows_to: Some(address_of(&here.kernel(), "rs_div_next")),
        ..FaultRecorder::default()
    });
    let ran = run_with(here, &recorder, &["rs_div"]);
    assert_eq!(ran.outcome.failures, ["div FAIL nothing was raised"]);
    assert_eq!(recorder.faults().len(), 1);
}
