//! The generated cases: the same snippets without probes and with probes.

use text::PlantByte;

use super::Contract;
use super::bench::Bench;
use crate::generated::Generated;
use crate::runner::{Verdict, verdict};
use crate::way::Way;

/// The name of the generated cases.
pub(super) const NAME: &str = "generated";

/// A row of the table: the way to plant. `None` plants nothing and shows that two runs without probes agree.
#[derive(Clone, Copy, Debug)]
pub(super) struct GeneratedCase(Option<Way>);

/// In the order in which they are run.
pub(super) const CASES: [GeneratedCase; 4] = [
    GeneratedCase(None),
    GeneratedCase(Some(Way::Byte(PlantByte::Port))),
    GeneratedCase(Some(Way::Byte(PlantByte::Int3))),
    GeneratedCase(Some(Way::HiddenPage)),
];

impl GeneratedCase {
    pub(super) fn name(self) -> String {
        format!("{NAME}/{}/1", self.0.map_or("none", Way::word))
    }

    /// Whether the case has passed, as for any case, and the counts or the error.
    pub(super) fn run(self, bench: &Bench, contract: &Contract<'_>) -> Verdict {
        if let Some(way) = self.0.filter(|way| !bench.delivers(*way)) {
            return (None, way.not_delivered());
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
