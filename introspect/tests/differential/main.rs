//! The emulator against the processor that the tests run on.
//!
//! Random instructions that the emulator claims are run by both, from the same state, and
//! must agree in every register, every defined flag, every byte of memory and where they go.
//! What the emulator refuses in the state at hand is not run, so that the test stays alive.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod compare;
mod generate;
#[path = "../insn/machine.rs"]
mod machine;
mod native;
mod random;

use std::collections::BTreeMap;

use compare::Disagreement;
use generate::Layout;
use native::Native;
use random::Random;

const DATA_BYTES: usize = 1024;
const TRIES: usize = 2_000_000;

/// At least so many mnemonics run: all that are emulated, but for those that need privileges,
/// that only newer processors have, or whose encoding random bytes seldom hit.
const LEAST_MNEMONICS: usize = 145;

/// So often, at least, each of them runs.
const LEAST_RUNS: usize = 20;

#[test]
fn emulated_instructions_do_what_the_processor_does() {
    let mut native = Native::new(DATA_BYTES);
    let layout = Layout {
        instruction: native.instruction(),
        target: native.target(),
        data: native.data(),
        data_bytes: DATA_BYTES,
    };
    let mut random = Random(0x5eed_0f1e_55ed);
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = BTreeMap::new();
    for _ in 0..TRIES {
        let Some(case) = generate::case(&mut random, &layout) else {
            continue;
        };
        let Some(compared) = compare::both(&case, &layout, &mut native) else {
            continue;
        };
        let name = format!("{:?}", case.decoded.instruction().mnemonic());
        *runs.entry(name.clone()).or_default() += 1;
        if let Err(Disagreement(text)) = compared {
            failures.entry(name).or_insert(text);
        }
    }
    assert!(
        failures.is_empty(),
        "{}",
        failures.values().cloned().collect::<String>()
    );
    let covered = runs.values().filter(|&&runs| runs >= LEAST_RUNS).count();
    assert!(covered >= LEAST_MNEMONICS, "only {covered} ran: {runs:?}");
}
