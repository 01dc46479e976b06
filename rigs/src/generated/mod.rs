//! Runs the same generated instructions without probes and with a probe at each instruction: the records of both runs must agree.
//!
//! ```text
//!  program: N snippets, each with a state to run it in      a seed and a count say which
//!    code   ──▶ the test guest's slots, in its ELF file
//!    states ──▶ the records of its initrd
//!  boot ─ unprobed ──▶ records filled in ─┐
//!  boot ─ probed ────▶ records filled in ─┴▶ compared, field by field; hits as the records say the flow was
//! ```
//!
//! [`run`](Generated::run) is a case of the contract. docs/rigs.md describes the generated and the excluded instructions.

mod boot;
mod compare;
mod generate;
mod hits;
mod layout;
mod program;
mod record;
mod snippet;
mod totals;

use std::time::Duration;

use vmm::{Host, HostFacts, Int3Delivery};

use boot::{Booted, Booter};
use layout::Layout;
use program::{Chosen, Program};
use totals::Totals;

use crate::way::Way;

/// The maximum number of snippets in a boot: the number of slots in the test guest.
const MOST_OF_A_BOOT: u64 = 2048;
/// The maximum number of repeated boots. If a guest comes to a bad end, the boot is repeated without the snippet at fault.
const MOST_BAD_ENDS: usize = 100;

/// The snippets to generate, and the KVM to run them on.
#[derive(Clone, Copy, Debug)]
pub struct Generated<'a> {
    /// The KVM.
    pub host: &'a Host,
    /// The result of the KVM's self-test.
    pub facts: HostFacts,
    /// The test guest's ELF file.
    pub guest: &'a [u8],
    /// Number of snippets.
    pub count: u64,
    /// The seed of the snippets.
    pub seed: u64,
    /// Kinds of snippets to leave out, and fields to leave out of the comparison.
    pub without: &'a [String],
    /// The time limit of each boot.
    pub timeout: Duration,
}

impl Generated<'_> {
    /// Runs the snippets without probes and with a plant at each instruction; if `way` is `None`, both times without probes. Returns
    /// the counts as text.
    ///
    /// # Errors
    ///
    /// The error, as text.
    pub fn run(&self, way: Option<Way>) -> Result<String, String> {
        let layout = Layout::of(self.guest)?;
        let mut totals = Totals::default();
        let (mut seed, mut left) = (self.seed, self.count);
        while left > 0 {
            let count = left.min(MOST_OF_A_BOOT);
            let chosen = Chosen {
                without: self.without,
                interpreted: self.facts.int3 == Int3Delivery::EmulationFailure,
            };
            let mut program = Program::generate(&layout, seed, count, chosen);
            self.run_program(&layout, &mut program, way, &mut totals)?;
            left -= count;
            seed += 1;
        }
        totals.conclude()
    }

    fn run_program(
        &self,
        layout: &Layout,
        program: &mut Program,
        way: Option<Way>,
        totals: &mut Totals,
    ) -> Result<(), String> {
        let file = layout.with_code(self.guest, program)?;
        let booter = Booter {
            host: self.host,
            facts: self.facts,
            guest: &file,
            timeout: self.timeout,
        };
        let unprobed = Self::boot_unprobed(&booter, program, totals)?;
        let probes = match way {
            Some(_) => hits::probes(layout, program),
            None => Vec::new(),
        };
        let mut bad_ends = 0;
        let probed = loop {
            let booted = booter.boot(program, &probes, way)?;
            let Some(end) = &booted.bad_end else {
                break booted;
            };
            let Some(culprit) = booted.running() else {
                return Err(format!("probed: {end}"));
            };
            let snippet = &mut program.snippets[culprit];
            snippet.skipped = true;
            totals.differ(
                "end".to_owned(),
                snippet,
                &[format!("probed, the run ends: {end}")],
            );
            bad_ends += 1;
            if bad_ends == MOST_BAD_ENDS {
                return Ok(());
            }
        };
        totals.count(program, &unprobed, &probed);
        let counted = hits::counted(&probed);
        for (number, snippet) in program.snippets.iter().enumerate() {
            if snippet.skipped {
                continue;
            }
            let (before, after) = (unprobed.record(number), probed.record(number));
            let mut wrong = compare::differences(self.without, snippet, before, after);
            if way.is_some() {
                wrong.extend(hits::mismatches(layout, snippet, before, &probed, &counted));
            }
            if !wrong.is_empty() {
                let mut kinds: Vec<&str> = wrong.iter().map(|wrong| &*wrong.kind).collect();
                kinds.dedup();
                let texts: Vec<String> = wrong.iter().map(|wrong| wrong.text.clone()).collect();
                totals.differ(kinds.join(", "), snippet, &texts);
            }
        }
        Ok(())
    }

    /// Boots without probes, and leaves out instructions that the KVM cannot execute.
    fn boot_unprobed(
        booter: &Booter<'_>,
        program: &mut Program,
        totals: &mut Totals,
    ) -> Result<Booted, String> {
        for _ in 0..MOST_BAD_ENDS {
            let booted = booter.boot(program, &[], None)?;
            let Some(end) = &booted.bad_end else {
                return Ok(booted);
            };
            let Some(culprit) = booted.running() else {
                return Err(format!("unprobed: {end}"));
            };
            let unknown = program.snippets[culprit].unknown();
            totals.first_bad_end.get_or_insert_with(|| end.clone());
            let alike = program.snippets.iter_mut();
            let mut skipped = 0;
            for snippet in alike.filter(|snippet| snippet.unknown() == unknown) {
                skipped += usize::from(!std::mem::replace(&mut snippet.skipped, true));
            }
            *totals.left_out.entry(unknown).or_default() += skipped;
        }
        Err(format!(
            "this KVM cannot execute too much of it: {:?}",
            totals.left_out
        ))
    }
}
