//! The generated cases: the same snippets without probes and with probes.

use text::PlantByte;

use super::Contract;
use super::bench::Bench;
use super::case::{not_delivered, word};
use crate::generated::Generated;
use crate::runner::{Verdict, verdict};

/// The name of the generated cases.
pub(super) const NAME: &str = "generated";

/// A row of the table: the planted byte. `None` plants nothing and shows that two runs without probes agree.
#[derive(Clone, Copy, Debug)]
pub(super) struct GeneratedCase(Option<PlantByte>);

/// In the order in which they are run.
pub(super) const CASES: [GeneratedCase; 3] = [
    GeneratedCase(None),
    GeneratedCase(Some(PlantByte::Port)),
    GeneratedCase(Some(PlantByte::Int3)),
];

impl GeneratedCase {
    pub(super) fn name(self) -> String {
        format!("{NAME}/{}/1", self.0.map_or("none", word))
    }

    /// Whether the case has passed, as for any case, and the counts or the error.
    pub(super) fn run(self, bench: &Bench, contract: &Contract<'_>) -> Verdict {
        if let Some(plant) = self.0.filter(|plant| !bench.delivers(*plant)) {
            return (None, not_delivered(plant));
        }
        let generated = Generated {
            host: &bench.host,
            facts: bench.facts,
            guest: bench.file.bytes(),
            count: contract.generated,
            seed: contract.seed,
            without: contract.without,
            timeout: contract.timeout,
        };
        verdict(generated.run(self.0))
    }
}
