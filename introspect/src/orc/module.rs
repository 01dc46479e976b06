//! The rules of a module, in guest memory.

use address::Gva;

use super::format::{Format, RULE_BYTES, Rule};
use super::table::relative;
use crate::{PagingState, PhysMemory, read_virt};

/// The largest module, a graphics driver, has 60 000 rules.
const MAX_RULES: u64 = 1 << 20;
const IP_BYTES: u64 = 4;

/// The place of a module's tables. The kernel sorts the tables when the module is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleRules {
    /// The table of addresses.
    pub ips: Gva,
    /// The table of rules.
    pub rules: Gva,
    /// The number of rules.
    pub count: u64,
}

impl ModuleRules {
    /// The rule for the instruction at `at`: the last one that begins there or before. Reads some twenty words.
    pub fn rule(
        &self,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        format: Format,
        at: Gva,
    ) -> Option<Rule> {
        let start = |number: u64| {
            let place = self.ips.wrapping_add(number * IP_BYTES);
            let mut distance = [0; 4];
            read_virt(memory, paging, place, &mut distance).ok()?;
            Some(relative(place, distance))
        };
        // The first rule behind `at` is in `low..=high`.
        let (mut low, mut high) = (0, self.count.min(MAX_RULES));
        while low < high {
            let middle = low.midpoint(high);
            if start(middle)? <= at.0 {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let number = low.checked_sub(1)?;
        let mut bytes = [0; RULE_BYTES];
        let place = self.rules.wrapping_add(number * RULE_BYTES as u64);
        read_virt(memory, paging, place, &mut bytes).ok()?;
        Some(format.rule(bytes))
    }
}
