//! The cases that are generated: the same snippets without probes and with them.

use probes::PlantByte;
use vmm::{Host, HostFacts};

use super::{Contract, delivers, word};
use crate::generated::Generated;

/// A row of the table: the byte that is planted, or none, which shows that two runs are alike at all.
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
        format!("generated/{}/1", word(self.0))
    }

    /// As for any case: whether it went well, and what was counted or is wrong.
    pub(super) fn run(
        self,
        host: &Host,
        facts: HostFacts,
        guest: &[u8],
        contract: &Contract<'_>,
    ) -> (Option<bool>, String) {
        if !self.0.is_none_or(|plant| delivers(&facts, plant)) {
            return (None, "this KVM does not deliver the trap".to_owned());
        }
        let generated = Generated {
            host,
            facts,
            guest,
            count: contract.generated,
            seed: contract.seed,
            without: contract.without,
            timeout: contract.timeout,
        };
        match generated.run(self.0) {
            Ok(detail) => (Some(true), detail),
            Err(detail) => (Some(false), detail),
        }
    }
}
