//! The rules of the kernel, from its file or its memory.

use address::Gva;
use thiserror::Error;

use super::format::{Format, RULE_BYTES, Rule};
use crate::{ImageSource, NotInImage, SymbolTable};

/// Today's kernels have 400 000 rules, ten bytes each.
const MAX_RULES: u64 = 4 << 20;
const IP_BYTES: usize = 4;

/// The reason why a kernel's stacks cannot be unwound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoOrc {
    /// The kernel is built with another unwinder.
    #[error("the kernel has no ORC tables: no symbol `{label}`")]
    NoLabel {
        /// The missing symbol.
        label: &'static str,
    },
    /// The labels are not in order.
    #[error(
        "the kernel's ORC tables have no plausible size: {ips} bytes of addresses, {rules} of rules"
    )]
    Size {
        /// Bytes of the table of addresses.
        ips: u64,
        /// Bytes of the table of rules.
        rules: u64,
    },
    /// The image does not hold the tables.
    #[error("cannot read the kernel's ORC tables")]
    Unreadable(#[from] NotInImage),
    /// The table of addresses is not sorted.
    #[error("the kernel's ORC table is not in the order of addresses")]
    Unsorted,
    /// The rules have no known format.
    #[error("the kernel's ORC rules have an unknown format")]
    Format,
}

/// The rules of a kernel, at its link-time addresses.
#[derive(Clone, Debug)]
pub struct OrcTable {
    /// The first address of each rule, sorted.
    starts: Vec<u64>,
    rules: Vec<u8>,
    format: Format,
}

impl OrcTable {
    /// Reads the tables of the kernel in `source`.
    ///
    /// # Errors
    ///
    /// If the kernel has no tables, or the tables make no sense.
    pub fn read(source: &dyn ImageSource, symbols: &SymbolTable) -> Result<Self, NoOrc> {
        let label = |label| symbols.address_of(label).ok_or(NoOrc::NoLabel { label });
        let first_ip = label("__start_orc_unwind_ip")?;
        let ips = label("__stop_orc_unwind_ip")?;
        let ips = ips.offset_from(first_ip).unwrap_or(0);
        let first_rule = label("__start_orc_unwind")?;
        let rules = label("__stop_orc_unwind")?;
        let rules = rules.offset_from(first_rule).unwrap_or(0);
        let count = ips / IP_BYTES as u64;
        let size = NoOrc::Size { ips, rules };
        if count == 0 || count > MAX_RULES || rules / RULE_BYTES as u64 != count {
            return Err(size);
        }
        let count = usize::try_from(count).map_err(|_| size)?;
        let mut distances = vec![0; count * IP_BYTES];
        source.read_linked(first_ip, &mut distances)?;
        let mut rules = vec![0; count * RULE_BYTES];
        source.read_linked(first_rule, &mut rules)?;
        Self::new(first_ip, &distances, rules)
    }

    /// The table with `distances` at `first_ip`.
    pub(super) fn new(first_ip: Gva, distances: &[u8], rules: Vec<u8>) -> Result<Self, NoOrc> {
        let start = |(number, distance): (usize, &[u8])| {
            let at = first_ip.wrapping_add((number * IP_BYTES) as u64);
            relative(at, [distance[0], distance[1], distance[2], distance[3]])
        };
        let starts: Vec<u64> = distances
            .chunks_exact(IP_BYTES)
            .enumerate()
            .map(start)
            .collect();
        if !starts.is_sorted() {
            return Err(NoOrc::Unsorted);
        }
        let format = Format::of(&rules).ok_or(NoOrc::Format)?;
        Ok(Self {
            starts,
            rules,
            format,
        })
    }

    /// The format of the rules, which modules share.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The rule for the instruction at the link-time address `at`: the last one that begins there or before.
    #[must_use]
    pub fn rule(&self, at: Gva) -> Option<Rule> {
        let after = self.starts.partition_point(|start| *start <= at.0);
        let number = after.checked_sub(1)?;
        let bytes = self.rules.get(number * RULE_BYTES..)?;
        Some(self.format.rule(*bytes.first_chunk()?))
    }
}

/// The target of the distance stored at `at`.
pub(super) fn relative(at: Gva, distance: [u8; IP_BYTES]) -> u64 {
    let distance = i64::from(i32::from_le_bytes(distance));
    at.0.wrapping_add_signed(distance)
}
