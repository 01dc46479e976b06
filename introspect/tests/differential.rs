//! The emulator against the processor of the test's host.
//!
//! The emulator and the processor run random instructions, from the same state, if the emulator
//! claims them. Both must agree in every register, every defined flag, every byte of memory and the
//! next address. If the emulator refuses an instruction in the given state, the processor does not
//! run the instruction, so that the test stays alive.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::collections::BTreeMap;

use reference::compare::{self, Disagreement};
use reference::generate::{self, Layout};
use reference::{Native, Random};

const DATA_BYTES: usize = 1024;
const TRIES: usize = 2_000_000;

/// The least number of mnemonics to run: all emulated mnemonics, except privileged mnemonics,
/// mnemonics of newer processors only, and encodings that random bytes seldom hit.
const LEAST_MNEMONICS: usize = 145;

/// The least number of runs of each mnemonic.
const LEAST_RUNS: usize = 20;

#[test]
fn emulated_instructions_act_as_on_the_processor() {
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
